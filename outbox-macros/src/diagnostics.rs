//! Collects the mistakes of one macro call. Missing keys are reported when no key is wrong.

use std::cell::RefCell;
use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

#[derive(Default)]
pub(crate) struct Diagnostics {
    errors: RefCell<Vec<syn::Error>>,
}

/// A mistake without a place.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) wrong: String,
    pub(crate) fix: String,
}

impl Diagnostics {
    /// Reports a mistake. `at`: the wrong tokens. `fix`: the text to type instead.
    pub(crate) fn error(&self, at: impl ToTokens, wrong: impl Display, fix: impl Display) {
        let error = syn::Error::new_spanned(at, message(wrong, fix));
        self.errors.borrow_mut().push(error);
    }

    pub(crate) fn error_at(&self, span: Span, wrong: impl Display, fix: impl Display) {
        let error = syn::Error::new(span, message(wrong, fix));
        self.errors.borrow_mut().push(error);
    }

    pub(crate) fn accept<T>(&self, at: impl ToTokens, outcome: Result<T, Fault>) -> Option<T> {
        outcome
            .map_err(|Fault { wrong, fix }| self.error(at, wrong, fix))
            .ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    pub(crate) fn expansion(self, tokens: TokenStream) -> Expansion {
        let errors = self.errors.into_inner();
        Expansion { tokens, errors }
    }
}

// On stable Rust, a macro cannot attach a note, so the fix is a second line of the message.
fn message(wrong: impl Display, fix: impl Display) -> String {
    format!("{wrong}\nnote: {fix}")
}

pub(crate) struct Expansion {
    pub(crate) tokens: TokenStream,
    pub(crate) errors: Vec<syn::Error>,
}

impl Expansion {
    pub(crate) fn into_tokens(self) -> TokenStream {
        let mut tokens = self.tokens;
        tokens.extend(self.errors.iter().map(syn::Error::to_compile_error));
        tokens
    }
}

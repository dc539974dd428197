//! Collects all mistakes of one macro call, so that a user sees all mistakes at once.
//!
//! Invariant: dropping an unfinished [`Diagnostics`] panics, because unreported mistakes would let
//! wrong code compile.

use std::cell::RefCell;
use std::fmt::Display;
use std::thread;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

pub(crate) struct Diagnostics {
    /// `None` once finished.
    errors: RefCell<Option<Vec<syn::Error>>>,
}

impl Diagnostics {
    pub(crate) fn new() -> Self {
        Self {
            errors: RefCell::new(Some(Vec::new())),
        }
    }

    /// Reports a mistake. `at`: the wrong tokens. `fix`: the text to type instead.
    pub(crate) fn error(&self, at: impl ToTokens, wrong: impl Display, fix: impl Display) {
        self.push(syn::Error::new_spanned(at, message(wrong, fix)));
    }

    pub(crate) fn error_at(&self, span: Span, wrong: impl Display, fix: impl Display) {
        self.push(syn::Error::new(span, message(wrong, fix)));
    }

    pub(crate) fn finish(self) -> Vec<syn::Error> {
        self.errors.take().unwrap_or_default()
    }

    fn push(&self, error: syn::Error) {
        self.errors.borrow_mut().get_or_insert_default().push(error);
    }
}

impl Drop for Diagnostics {
    fn drop(&mut self) {
        let forgotten = self.errors.borrow().is_some();
        assert!(
            !forgotten || thread::panicking(),
            "diagnostics were dropped without being finished"
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_message_names_the_mistake_and_the_fix() {
        let diagnostics = Diagnostics::new();
        diagnostics.error_at(Span::call_site(), "it has no name", "write `name = \"…\"`");
        let errors = diagnostics.finish();
        assert_eq!(errors.len(), 1);
        assert_eq!(
            errors[0].to_string(),
            "it has no name\nnote: write `name = \"…\"`"
        );
    }

    #[test]
    #[should_panic(expected = "dropped without being finished")]
    fn dropping_unfinished_diagnostics_panics() {
        drop(Diagnostics::new());
    }
}

//! `#[derive(DomainEvent)]`: a struct is one event, an enum is one event per variant.

mod attr;
mod expand;
mod fallback;
mod model;
mod serde_names;
mod validate;

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

use crate::diagnostics::{Diagnostics, Expansion};
use model::Declaration;

pub(crate) fn derive(input: TokenStream) -> Expansion {
    let input = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => {
            return Expansion {
                tokens: TokenStream::new(),
                errors: vec![error],
            };
        }
    };
    let diagnostics = Diagnostics::new();
    let declaration = Declaration::read(input, &diagnostics);
    let event_type = validate::validate(&declaration, &diagnostics);
    let errors = diagnostics.finish();
    let tokens = match event_type {
        Some(event_type) if errors.is_empty() => expand::expand(&event_type),
        _ => fallback::fallback(&declaration),
    };
    Expansion { tokens, errors }
}

//! `#[derive(DomainEvent)]`: a struct is one event, an enum is one event per variant.

mod attr;
mod expand;
mod model;
mod serde_names;
mod validate;

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

use crate::diagnostics::{Diagnostics, Expansion};
use model::Declaration;

pub(crate) fn derive(input: TokenStream) -> Expansion {
    let diagnostics = Diagnostics::default();
    let Some(declaration) = Declaration::read(input, &diagnostics) else {
        return diagnostics.expansion(TokenStream::new());
    };
    // A wrong key would also be reported as missing.
    let events = match diagnostics.is_empty() {
        true => validate::events(&declaration, &diagnostics),
        false => None,
    };
    let tokens = match events {
        Some(events) if diagnostics.is_empty() => expand::expand(&declaration, &events),
        // Without events the code type-checks, so code around the event shows no further errors.
        _ if declaration.generics.params.is_empty() => expand::expand(&declaration, &[]),
        _ => TokenStream::new(),
    };
    diagnostics.expansion(tokens)
}

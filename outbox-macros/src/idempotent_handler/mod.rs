//! `#[idempotent_handler]`: an `async fn` becomes the handler of one event for one consumer.

mod attr;
mod expand;
mod fallback;
mod messages;
mod model;
mod options;
mod validate;

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

use crate::diagnostics::{Diagnostics, Expansion};
use attr::Keys;
use model::Declaration;

pub(crate) fn attribute(arguments: TokenStream, item: TokenStream) -> Expansion {
    let diagnostics = Diagnostics::new();
    let keys = Keys::read(arguments, &diagnostics);
    let declaration = Declaration::read(keys, item.clone(), &diagnostics);
    let handler = declaration
        .as_ref()
        .and_then(|declaration| validate::validate(declaration, &diagnostics));
    let errors = diagnostics.finish();
    let code = match (handler, &declaration) {
        (Some(handler), _) if errors.is_empty() => expand::expand(&handler),
        (_, Some(declaration)) => fallback::fallback(declaration),
        (_, None) => TokenStream::new(),
    };
    // The function is always emitted unchanged, because other code calls it and editors analyze it.
    let tokens = TokenStream::from_iter([item, code]);
    Expansion { tokens, errors }
}

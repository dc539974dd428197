//! `#[idempotent_handler]`: an `async fn` becomes the handler of one event for one consumer.

mod attr;
mod expand;
mod fallback;
mod model;
mod options;
mod validate;

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

use crate::diagnostics::{Diagnostics, Expansion};
use attr::Keys;
use model::Function;

pub(crate) fn attribute(arguments: TokenStream, item: TokenStream) -> Expansion {
    let diagnostics = Diagnostics::default();
    let keys = Keys::read(arguments, &diagnostics);
    let code = match syn::parse2::<Function>(item.clone()) {
        Ok(function) => match validate::validate(&keys, &function, &diagnostics) {
            Some(handler) if diagnostics.is_empty() => expand::expand(&handler),
            _ => fallback::fallback(&function, &keys.crate_path),
        },
        Err(error) => {
            let fix = "put it above `async fn name(event: Event<T>) -> Result<(), HandlerError>`";
            diagnostics.error_at(error.span(), "`#[idempotent_handler]` belongs on a function", fix);
            TokenStream::new()
        }
    };
    // The function is always emitted unchanged, because other code calls it and editors analyze it.
    diagnostics.expansion(TokenStream::from_iter([item, code]))
}

//! The rules for the function.

use proc_macro2::Span;
use quote::{ToTokens, quote_spanned};
use syn::{FnArg, ReturnType, Signature, Type};

use super::attr::Keys;
use super::model::{Function, Handler};
use crate::diagnostics::Diagnostics;

/// Returns `None` only after a reported mistake.
pub(super) fn validate<'a>(
    keys: &'a Keys,
    function: &'a Function,
    diagnostics: &Diagnostics,
) -> Option<Handler<'a>> {
    let signature = &function.signature;
    // A wrong key may be the consumer.
    if keys.consumer.is_none() && diagnostics.is_empty() {
        diagnostics.error_at(
            Span::call_site(),
            format!(
                "handler `{}` has no consumer; the inbox stores a name that must survive renaming",
                signature.ident
            ),
            "write `#[idempotent_handler(consumer = \"…\")]`, for example with `\"inventory\"`",
        );
    }
    if signature.asyncness.is_none() {
        let wrong = format!("handler `{}` is not async", signature.ident);
        let fix = format!("write `async fn {}`", signature.ident);
        diagnostics.error(signature.fn_token, wrong, fix);
    }
    if !signature.generics.params.is_empty() {
        let wrong = format!(
            "handler `{}` is generic, but a registration names one function",
            signature.ident
        );
        let fix = "name the types, and write borrowed arguments with `'_`, for example `Tx<'_>`";
        diagnostics.error(&signature.generics.params, wrong, fix);
    }
    let arguments = arguments(signature, diagnostics);
    let output = match &signature.output {
        ReturnType::Type(_, output) => output.to_token_stream(),
        // `IntoOutcome` has the error message.
        ReturnType::Default => quote_spanned!(signature.ident.span()=> ()),
    };
    Some(Handler {
        ident: &signature.ident,
        visibility: &function.visibility,
        conditions: function.conditions(),
        consumer: keys.consumer.as_ref()?,
        crate_path: &keys.crate_path,
        messages: keys.messages.as_deref(),
        event: *arguments.first()?,
        arguments,
        output,
        options: &keys.options,
    })
}

fn arguments<'a>(signature: &'a Signature, diagnostics: &Diagnostics) -> Vec<&'a Type> {
    let ident = &signature.ident;
    if signature.inputs.is_empty() {
        let wrong = format!("handler `{ident}` takes no event");
        let fix = format!("write `async fn {ident}(event: Event<…>)` with the type of the event");
        diagnostics.error_at(signature.paren_token.span.join(), wrong, fix);
    }
    let mut types = Vec::new();
    for argument in &signature.inputs {
        match argument {
            FnArg::Receiver(receiver) => {
                let wrong = format!("handler `{ident}` takes `self`, but a handler has no object");
                let fix = "make it a free function, and take dependencies as `HandlerState<…>`";
                diagnostics.error(receiver.self_token, wrong, fix);
            }
            FnArg::Typed(argument) => types.push(&*argument.ty),
        }
    }
    types
}

//! All rules of the attribute; rules for its options are in [`options`].
//!
//! Invariant: each mistake is reported once, at the narrowest place.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, PatType, ReturnType, Signature, Type};

use super::model::{Declaration, Handler};
use super::{messages, options};
use crate::diagnostics::Diagnostics;
use crate::keys::Slot;
use crate::names::{self, Fault};

/// Returns `None` only after a reported mistake.
pub(super) fn validate<'a>(declaration: &'a Declaration, diagnostics: &Diagnostics) -> Option<Handler<'a>> {
    let Declaration { keys, function } = declaration;
    let signature = &function.signature;
    match &keys.consumer {
        Slot::Given(consumer) => {
            if let Err(Fault { wrong, fix }) = names::consumer(&consumer.value()) {
                diagnostics.error(consumer, wrong, fix);
            }
        }
        Slot::Faulty => {}
        Slot::Absent => diagnostics.error_at(
            Span::call_site(),
            format!(
                "handler `{}` has no consumer; the inbox stores a name that must survive renaming",
                signature.ident
            ),
            "write `#[idempotent_handler(consumer = \"…\")]`, for example with `\"inventory\"`",
        ),
    }
    check_qualifiers(signature, diagnostics);
    let arguments = arguments(signature, diagnostics);
    let output = output(signature, diagnostics);
    let options = options::options(declaration, diagnostics);
    let messages = messages::messages(keys, diagnostics);
    Some(Handler {
        ident: &signature.ident,
        visibility: &function.visibility,
        conditions: function.conditions(),
        consumer: keys.consumer.as_ref().given()?,
        crate_path: declaration.crate_path(),
        messages,
        event: *arguments.first()?,
        arguments,
        output: output?,
        options,
    })
}

/// Rejects `const`. The compiler reports other qualifiers, such as `unsafe`.
fn check_qualifiers(signature: &Signature, diagnostics: &Diagnostics) {
    let Signature {
        constness,
        asyncness,
        fn_token,
        ident,
        generics,
        ..
    } = signature;
    if let Some(token) = constness {
        // `const async fn` does not exist, so this message also covers the missing `async`.
        let wrong = format!("handler `{ident}` is const, but it runs for each message");
        diagnostics.error(token, wrong, format!("write `async fn {ident}`"));
    }
    if asyncness.is_none() && constness.is_none() {
        let wrong = format!("handler `{ident}` is not async");
        diagnostics.error(fn_token, wrong, format!("write `async fn {ident}`"));
    }
    if !generics.params.is_empty() {
        let wrong = format!("handler `{ident}` is generic, but a registration names one function");
        let fix = "name the types, and write borrowed arguments with `'_`, for example `Tx<'_>`";
        diagnostics.error(&generics.params, wrong, fix);
    }
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
            FnArg::Typed(argument) => {
                check_argument(argument, diagnostics);
                types.push(&*argument.ty);
            }
        }
    }
    types
}

fn check_argument(argument: &PatType, diagnostics: &Diagnostics) {
    let condition = |name: &str| {
        argument
            .attrs
            .iter()
            .find(|attribute| attribute.path().is_ident(name))
    };
    if let Some(attribute) = condition("cfg").or_else(|| condition("cfg_attr")) {
        let wrong = "an argument of a handler cannot be conditional";
        diagnostics.error(
            attribute,
            wrong,
            "write a handler per configuration, with `#[cfg(…)]` above it",
        );
    }
    if let Some(word) = find_impl(argument.ty.to_token_stream()) {
        let wrong = "an argument of a handler has one type, but `impl` covers many";
        diagnostics.error(word, wrong, "name the type");
    }
}

// A nested `impl` makes a function generic without a parameter list.
fn find_impl(tokens: TokenStream) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "impl" => Some(word),
        TokenTree::Group(group) => find_impl(group.stream()),
        _ => None,
    })
}

fn output<'a>(signature: &'a Signature, diagnostics: &Diagnostics) -> Option<&'a Type> {
    let wrong = format!(
        "handler `{}` returns nothing, so it cannot report a failure",
        signature.ident
    );
    let fix = "return `Result<(), HandlerError>`";
    match &signature.output {
        ReturnType::Default => diagnostics.error(&signature.ident, wrong, fix),
        ReturnType::Type(_, ty) if matches!(&**ty, Type::Tuple(unit) if unit.elems.is_empty()) => {
            diagnostics.error(ty, wrong, fix);
        }
        ReturnType::Type(_, ty) => {
            if let Some(word) = find_impl(ty.to_token_stream()) {
                let wrong = "the registration of a handler names its return type, but `impl` has no name";
                diagnostics.error(
                    word,
                    wrong,
                    "name the type, for example `Result<Emit<Events>, HandlerError>`",
                );
            }
            return Some(ty);
        }
    }
    None
}

//! Writes the registration that a user could have written, beside the function.
//!
//! Every piece that can be refused by the compiler carries the span of what the user wrote for it: an argument's type
//! for its extraction, the return type for the outcome, the name for the future.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::model::Handler;

/// Expands a checked handler. The function itself is not part of it.
pub(super) fn expand(handler: &Handler<'_>) -> TokenStream {
    let Handler {
        ident,
        visibility,
        conditions,
        consumer,
        crate_path,
        event,
        arguments,
        ..
    } = handler;
    let name = ident.unraw().to_string();
    let line = quote_spanned!(ident.span()=> ::core::line!());
    let events = quote_spanned! {event.span()=>
        <<#event as #crate_path::EventArgument>::Event as #crate_path::__private::DomainEvent>::DESCRIPTORS
    };
    let requires = arguments
        .iter()
        .map(|ty| quote_spanned!(ty.span()=> <#ty as #crate_path::FromContext<'_>>::REQUIRES));
    let invoke = invoke(handler);
    quote! {
        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility struct #ident {}

        #(#conditions)*
        #[allow(deprecated)]
        const _: () = {
            impl #crate_path::Handler for #ident {
                const REGISTRATION: #crate_path::Registration = #crate_path::Registration {
                    consumer: #consumer,
                    handler: ::core::concat!(::core::module_path!(), "::", #name),
                    events: #events,
                    file: ::core::file!(),
                    line: #line,
                    requires: &[#(#requires),*],
                    invoke: __invoke,
                };
            }
            #invoke
            #crate_path::__private::inventory::submit! {
                <#ident as #crate_path::Handler>::REGISTRATION
            }
        };
    }
}

fn invoke(handler: &Handler<'_>) -> TokenStream {
    let Handler {
        ident,
        crate_path,
        arguments,
        output,
        ..
    } = handler;
    // Mixed-site variables cannot meet a name that the user wrote.
    let context = Ident::new("__context", Span::mixed_site());
    let values: Vec<Ident> = (0..arguments.len())
        .map(|index| format_ident!("__a{index}", span = Span::mixed_site()))
        .collect();
    let extractions = arguments.iter().zip(&values).map(|(ty, value)| {
        quote_spanned! {ty.span()=>
            let #value = <#ty as #crate_path::FromContext<'_>>::from_context(&#context)?;
        }
    });
    let outcome = {
        let (first, last) = ends(output);
        let mut function = (*ident).clone();
        function.set_span(first);
        let call = quote_spanned!(first=> #function(#(#values),*));
        let wait = quote_spanned!(last=> .await);
        let into_outcome = at(first, quote!(#crate_path::__private::into_outcome));
        quote!(#into_outcome(#call #wait))
    };
    let future = quote_spanned!(ident.span()=> ::std::boxed::Box::pin(async move {
        #(#extractions)*
        #outcome
    }));
    quote! {
        fn __invoke<'a>(
            #context: #crate_path::HandlerContext<'a>,
        ) -> #crate_path::__private::BoxFuture<'a, ::core::result::Result<(), #crate_path::HandlerError>> {
            #future
        }
    }
}

// `Spanned::span` is the first token only on stable; an expression between both ends covers the whole type.
fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.into_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::mixed_site);
    (first, spans.last().unwrap_or(first))
}

// Moves a path to a span, because an error about an argument also underlines the function it was given to.
fn at(span: Span, path: TokenStream) -> TokenStream {
    path.into_iter()
        .map(|mut token| {
            token.set_span(span);
            token
        })
        .collect()
}

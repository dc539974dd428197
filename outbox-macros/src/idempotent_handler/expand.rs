//! Generates the handler's registration next to the function.
//!
//! Invariant: the compiler reports a type error of generated code at the user's code: errors of the
//! extraction at the argument's type, of the outcome at the return type, and of the future at the
//! function's name.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::Path;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::attr::Options;
use super::model::Handler;
use super::options::{BusinessKey, Pattern, Strategy};

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
    let argument = argument(handler);
    let events = match handler.messages {
        None => quote_spanned!(event.span()=> <#event as #crate_path::EventArgument>::EVENTS),
        Some(patterns) => {
            let patterns = patterns.iter().map(|pattern| selected(pattern, crate_path));
            quote!(&[#(#patterns),*])
        }
    };
    let others = || arguments.iter().skip(1);
    let requires =
        others().map(|ty| quote_spanned!(ty.span()=> <#ty as #crate_path::FromContext<'_>>::REQUIRES));
    let transactional =
        others().map(|ty| quote_spanned!(ty.span()=> <#ty as #crate_path::FromContext<'_>>::TRANSACTIONAL));
    let several = quote_spanned!(event.span()=> <#event as #argument>::SEVERAL);
    let (first, _) = ends(&handler.output);
    let outcome = &handler.output;
    let emits = quote_spanned!(first=> <#outcome as #crate_path::__private::IntoOutcome>::EMITS);
    let options = options(handler.options, crate_path);
    let invoke = invoke(handler);
    let business_key = business_key(handler);
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
                    shape: #crate_path::Shape {
                        several: #several,
                        transactional: false #(|| #transactional)*,
                        emits: #emits,
                    },
                    options: #options,
                    invoke: __invoke,
                };
            }
            #invoke
            #business_key
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
    // Mixed-site hygiene keeps the macro's variables apart from the user's names.
    let context = Ident::new("__context", Span::mixed_site());
    let values: Vec<Ident> = (0..arguments.len())
        .map(|index| format_ident!("__a{index}", span = Span::mixed_site()))
        .collect();
    let argument = argument(handler);
    let extractions = arguments
        .iter()
        .zip(&values)
        .enumerate()
        .map(|(index, (ty, value))| {
            if index == 0 {
                return quote_spanned!(ty.span()=> let #value = <#ty as #argument>::take(&#context)?;);
            }
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
        // The generated code names the output type. With an inferred type, the compiler would
        // report one mistake twice.
        let into_outcome =
            quote_spanned!(first=> <#output as #crate_path::__private::IntoOutcome>::into_outcome);
        quote!(#into_outcome(#call #wait))
    };
    let future = quote_spanned!(ident.span()=> ::std::boxed::Box::pin(async move {
        #(#extractions)*
        #outcome
    }));
    quote! {
        fn __invoke<'a>(
            #context: #crate_path::HandlerContext<'a>,
        ) -> #crate_path::__private::BoxFuture<'a, ::core::result::Result<#crate_path::Effect, #crate_path::HandlerError>> {
            #future
        }
    }
}

fn argument(handler: &Handler<'_>) -> TokenStream {
    let (event, crate_path) = (handler.event, handler.crate_path);
    match handler.messages {
        None => quote_spanned!(event.span()=> #crate_path::EventArgument),
        Some(_) => quote_spanned!(event.span()=> #crate_path::RawArgument),
    }
}

fn selected(pattern: &Pattern, crate_path: &Path) -> TokenStream {
    let descriptor = quote!(#crate_path::__private::EventDescriptor);
    match pattern {
        Pattern::EventType { aggregate, name } => quote!(#descriptor::of_type(#aggregate, #name)),
        Pattern::Aggregate(aggregate) => quote!(#descriptor::of_aggregate(#aggregate)),
        Pattern::Everything => quote!(#descriptor::EVERYTHING),
    }
}

fn options(options: &Options, crate_path: &Path) -> TokenStream {
    let Options {
        strategy,
        order,
        batch,
        attempts,
        backoff,
        timeout,
    } = options;
    let strategy = strategy.as_ref().map(|strategy| {
        let strategy = match strategy {
            Strategy::MessageId => quote!(MessageId),
            Strategy::Sequence { gap: None } => quote!(Sequence {
                gap: ::core::option::Option::None
            }),
            Strategy::Sequence { gap: Some(gap) } => {
                let gap = duration(gap);
                quote!(Sequence { gap: ::core::option::Option::Some(#gap) })
            }
            Strategy::Natural => quote!(Natural),
            Strategy::Key(_) => quote!(Key(__key)),
            Strategy::Constraint(names) => quote!(Constraint(&[#(#names),*])),
            Strategy::External => quote!(External),
        };
        quote!(.strategy(#crate_path::Strategy::#strategy))
    });
    let order = order.as_ref().map(|word| {
        // An order in the attribute is the name of an `Order` variant in lower case.
        let word = word.to_string();
        let (first, rest) = word.split_at(1);
        let variant = format_ident!("{}{rest}", first.to_uppercase());
        quote!(.order(#crate_path::Order::#variant))
    });
    let batch = batch.map(|batch| quote!(.batch(#batch)));
    let attempts = attempts.map(|attempts| quote!(.attempts_max(#attempts)));
    let backoff = backoff.map(|(min, max)| {
        let (min, max) = (duration(&min), duration(&max));
        quote!(.backoff(#crate_path::__private::Backoff { min: #min, max: #max }))
    });
    let timeout = timeout.map(|timeout| {
        let timeout = duration(&timeout);
        quote!(.timeout(#timeout))
    });
    quote!(#crate_path::HandlerOptions::new() #strategy #order #batch #attempts #backoff #timeout)
}

fn duration(duration: &Duration) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanos))
}

// If the key of `key(…)` is no field of the event, or is not text, the compiler underlines the
// user's path.
fn business_key(handler: &Handler<'_>) -> Option<TokenStream> {
    let Some(Strategy::Key(key)) = &handler.options.strategy else {
        return None;
    };
    let Handler {
        event, crate_path, ..
    } = handler;
    let event_at = |span: Span| Ident::new("__event", span.resolved_at(Span::mixed_site()));
    let (key, parameter) = match key {
        BusinessKey::Field(field) => {
            let parameter = event_at(field.span());
            (quote_spanned!(field.span()=> &#parameter.#field), parameter)
        }
        BusinessKey::Function(function) => {
            let (first, last) = ends(function);
            let parameter = event_at(last);
            let call = quote_spanned!(last=> (#parameter));
            (quote_spanned!(first=> &#function #call), parameter)
        }
    };
    Some(quote! {
        fn __key(
            __message: &#crate_path::__private::Message,
        ) -> ::core::result::Result<::std::string::String, #crate_path::HandlerError> {
            #crate_path::__private::business_key::<<#event as #crate_path::EventArgument>::Event>(
                __message,
                |#parameter| #crate_path::__private::key_text(#key),
            )
        }
    })
}

// On stable, `Spanned::span` is only the first token. An expression with the spans of both ends
// covers the whole type.
fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.into_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::mixed_site);
    (first, spans.last().unwrap_or(first))
}

//! Generates the implementation of `DomainEvent` and the entry in the catalogue.

use std::collections::BTreeSet;

use proc_macro2::{Literal, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::model::{Declaration, Event, KeyField};

pub(super) fn expand(declaration: &Declaration, events: &[Event]) -> TokenStream {
    let Declaration {
        ident, crate_path, ..
    } = declaration;
    let descriptors = events.iter().map(|event| descriptor(event, declaration));
    let descriptor = by_event(
        declaration,
        events,
        |_| None,
        |index, _, _| {
            let index = Literal::usize_suffixed(index);
            quote!(&<Self as #crate_path::DomainEvent>::DESCRIPTORS[#index])
        },
    );
    // The generated code has the span of the field's type. So the compiler underlines the type if
    // it is unsupported.
    let aggregate_id = by_event(
        declaration,
        events,
        |event| Some(&event.aggregate_id),
        |_, event, value| {
            let ty = &event.aggregate_id.ty;
            let convert = quote_spanned!(ty.span()=> <#ty as #crate_path::ToAggregateId>::to_aggregate_id);
            quote!(#convert(#value))
        },
    );
    let dedup_key = by_event(
        declaration,
        events,
        |event| event.dedup_key.as_ref(),
        |_, event, value| match &event.dedup_key {
            Some(KeyField { ty, .. }) => {
                let convert = quote_spanned!(ty.span()=> <#ty as ::std::string::ToString>::to_string);
                quote!(::core::option::Option::Some(#convert(#value)))
            }
            None => quote!(::core::option::Option::None),
        },
    );
    let sensitive = sensitive(events);
    let (encode, codec) = codec(declaration);
    // Deprecated event types are still derived, because old messages still arrive.
    quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #crate_path::DomainEvent for #ident {
            const DESCRIPTORS: &'static [#crate_path::EventDescriptor] = &[#(#descriptors),*];
            #sensitive
            fn descriptor(&self) -> &'static #crate_path::EventDescriptor {
                #descriptor
            }
            fn aggregate_id(&self) -> #crate_path::AggregateId {
                #aggregate_id
            }
            fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
                #dedup_key
            }
            #encode
        }
        #[automatically_derived]
        #[allow(deprecated)]
        impl #crate_path::payload::EventCodec for #ident {
            type Codec = #codec;
        }
        #[allow(deprecated)]
        const _: () = {
            #crate_path::__private::inventory::submit! {
                #crate_path::__private::CatalogueEntry {
                    descriptors: <#ident as #crate_path::DomainEvent>::DESCRIPTORS,
                    sensitive: <#ident as #crate_path::DomainEvent>::SENSITIVE,
                }
            }
        };
    }
}

fn sensitive(events: &[Event]) -> Option<TokenStream> {
    let names: BTreeSet<&String> = events.iter().flat_map(|event| &event.sensitive).collect();
    let names = names.into_iter();
    (names.len() > 0).then(|| quote!(const SENSITIVE: &'static [&'static str] = &[#(#names),*];))
}

/// If the codec cannot write the event, the compiler underlines the codec.
fn codec(declaration: &Declaration) -> (Option<TokenStream>, TokenStream) {
    let crate_path = &declaration.crate_path;
    let Some(codec) = &declaration.codec else {
        return (None, quote!(#crate_path::payload::Json));
    };
    let call = quote_spanned!(codec.span()=> #crate_path::payload::with::<#codec, Self>(self));
    let encode = quote! {
        fn encode(
            &self,
        ) -> ::core::result::Result<#crate_path::payload::Payload, #crate_path::payload::CodecError> {
            #call
        }
    };
    (Some(encode), quote!(#codec))
}

fn descriptor(event: &Event, declaration: &Declaration) -> TokenStream {
    let Declaration {
        ident,
        crate_path,
        is_enum,
        ..
    } = declaration;
    let Event {
        aggregate,
        name,
        version,
        sequenced,
        ..
    } = event;
    let subject = match &event.subject {
        Some(subject) => quote!(::core::option::Option::Some(#subject)),
        None => quote!(::core::option::Option::None),
    };
    let path = if *is_enum {
        format!("{}::{}", ident.unraw(), event.ident.unraw())
    } else {
        ident.unraw().to_string()
    };
    // The reported line is the line of the struct or variant, not of the derive.
    let line = quote_spanned!(event.ident.span()=> ::core::line!());
    quote! {
        #crate_path::EventDescriptor {
            aggregate: #aggregate,
            name: #name,
            version: #version,
            subject: #subject,
            sequenced: #sequenced,
            rust_type: ::core::concat!(::core::module_path!(), "::", #path),
            file: ::core::file!(),
            line: #line,
        }
    }
}

/// The expression for a struct's only event, or a `match` with an arm per variant. `expression`
/// receives a reference to the value of `field`. Without events, the code is never run.
fn by_event<'a>(
    declaration: &Declaration,
    events: &'a [Event],
    field: impl Fn(&'a Event) -> Option<&'a KeyField>,
    expression: impl Fn(usize, &'a Event, TokenStream) -> TokenStream,
) -> TokenStream {
    if events.is_empty() {
        return quote!(::core::unreachable!());
    }
    let events = events.iter().enumerate();
    if !declaration.is_enum {
        let expressions = events.map(|(index, event)| {
            let member = field(event).map(|field| &field.member);
            expression(index, event, quote!(&self.#member))
        });
        return expressions.collect();
    }
    let arms = events.map(|(index, event)| {
        let variant = &event.ident;
        let binding = field(event).map(|KeyField { member, .. }| quote!(#member: __value,));
        let expression = expression(index, event, quote!(__value));
        quote!(Self::#variant { #binding .. } => #expression,)
    });
    quote!(match self { #(#arms)* })
}

//! What the derive writes beside its errors: an implementation that type-checks, so that the code around the event
//! does not turn red as well. It never runs, because the crate does not compile.

use proc_macro2::TokenStream;
use quote::quote;

use super::model::{Body, Declaration};

/// Writes the stand-in, or nothing for a union or a generic type: it would only add errors about their bounds.
pub(super) fn fallback(declaration: &Declaration) -> TokenStream {
    let Declaration {
        ident,
        generics,
        body,
        ..
    } = declaration;
    if matches!(body, Body::Union(_)) || !generics.params.is_empty() {
        return TokenStream::new();
    }
    let crate_path = declaration.crate_path();
    quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #crate_path::DomainEvent for #ident {
            const DESCRIPTORS: &'static [#crate_path::EventDescriptor] = &[];
            fn descriptor(&self) -> &'static #crate_path::EventDescriptor {
                ::core::unreachable!()
            }
            fn aggregate_id(&self) -> #crate_path::AggregateId {
                ::core::unreachable!()
            }
            fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
                ::core::unreachable!()
            }
        }
    }
}

//! The code emitted next to errors: an implementation that type-checks, so that code around the
//! event shows no further errors.

use proc_macro2::TokenStream;
use quote::quote;

use super::model::{Body, Declaration};

/// Emits nothing for a union or a generic type: an implementation would add errors about bounds.
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
        #[automatically_derived]
        #[allow(deprecated)]
        impl #crate_path::payload::EventCodec for #ident {
            type Codec = #crate_path::payload::Json;
        }
    }
}

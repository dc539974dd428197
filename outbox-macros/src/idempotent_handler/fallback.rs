//! The code emitted next to errors: the handler's type. A router that names the type shows no
//! further errors.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Path;

use super::model::Function;

/// Emits nothing for a method: no type can be declared next to a method.
pub(super) fn fallback(function: &Function, crate_path: &Path) -> TokenStream {
    if function.signature.receiver().is_some() {
        return TokenStream::new();
    }
    let conditions = function.conditions();
    let visibility = &function.visibility;
    let ident = &function.signature.ident;
    quote! {
        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility struct #ident {}

        #(#conditions)*
        impl #crate_path::Handler for #ident {
            const REGISTRATION: #crate_path::Registration = ::core::unreachable!();
        }
    }
}

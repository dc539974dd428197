//! The function under `idempotent_handler`, before and after its validation.

use proc_macro2::{Ident, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, LitStr, Path, Signature, Type, Visibility};

use super::attr::Options;
use super::options::Pattern;

/// The function without its body, which is not parsed and may be unfinished.
pub(super) struct Function {
    pub(super) attributes: Vec<Attribute>,
    pub(super) visibility: Visibility,
    pub(super) signature: Signature,
}

pub(super) struct Handler<'a> {
    pub(super) ident: &'a Ident,
    pub(super) visibility: &'a Visibility,
    /// `cfg` conditions, repeated on generated items.
    pub(super) conditions: Vec<&'a Attribute>,
    pub(super) consumer: &'a LitStr,
    pub(super) crate_path: &'a Path,
    pub(super) messages: Option<&'a [Pattern]>,
    pub(super) event: &'a Type,
    /// Types of the arguments, including the event.
    pub(super) arguments: Vec<&'a Type>,
    pub(super) output: TokenStream,
    pub(super) options: &'a Options,
}

impl Function {
    pub(super) fn conditions(&self) -> Vec<&Attribute> {
        self.attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("cfg"))
            .collect()
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let function = Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
        };
        input.parse::<TokenStream>()?;
        Ok(function)
    }
}

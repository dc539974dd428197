//! The declared function, and its handler once all rules hold.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, ExprPath, LitStr, Member, Path, Signature, Type, Visibility};

use super::attr::Keys;
use crate::diagnostics::Diagnostics;
use crate::runtime::Runtime;

pub(super) struct Declaration {
    pub(super) keys: Keys,
    pub(super) function: Function,
}

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
    pub(super) crate_path: Path,
    pub(super) messages: Option<Vec<Pattern>>,
    pub(super) event: &'a Type,
    /// Types of the arguments, including the event.
    pub(super) arguments: Vec<&'a Type>,
    pub(super) output: &'a Type,
    pub(super) options: Options<'a>,
}

/// Unset options get the runtime's defaults.
#[derive(Default)]
pub(super) struct Options<'a> {
    pub(super) strategy: Option<Strategy>,
    pub(super) order: Option<&'a Ident>,
    pub(super) batch: Option<u32>,
    pub(super) attempts: Option<u32>,
    pub(super) backoff: Option<(Duration, Duration)>,
    pub(super) timeout: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Pattern {
    /// Messages of one event in any version, such as `order.placed`.
    EventType { aggregate: String, name: String },
    /// All events of an aggregate, such as `order.*`.
    Aggregate(String),
    /// All messages: `*`.
    Everything,
}

pub(super) enum Strategy {
    MessageId,
    Sequence { gap: Option<Duration> },
    Natural,
    Key(BusinessKey),
    Constraint(Vec<LitStr>),
    External,
}

pub(super) enum BusinessKey {
    Field(Member),
    Function(ExprPath),
}

impl Declaration {
    /// Returns `None`, after a reported mistake, if the item is not a function.
    pub(super) fn read(keys: Keys, item: TokenStream, diagnostics: &Diagnostics) -> Option<Self> {
        match syn::parse2(item) {
            Ok(function) => Some(Self { keys, function }),
            Err(error) => {
                let fix = "put it above `async fn name(event: Event<T>) -> Result<(), HandlerError>`";
                diagnostics.error_at(error.span(), "`#[idempotent_handler]` belongs on a function", fix);
                None
            }
        }
    }

    pub(super) fn crate_path(&self) -> Path {
        let given = self.keys.crate_path.as_ref().given().cloned();
        given.unwrap_or_else(|| Runtime::Inbox.path())
    }
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

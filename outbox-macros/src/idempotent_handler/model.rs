//! The attribute's data: first the function as declared, then, once all rules hold, the handler.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, ExprPath, LitStr, Member, Path, Signature, Type, Visibility};

use super::attr::Keys;
use crate::diagnostics::Diagnostics;
use crate::runtime::Runtime;

/// The function with the keys as written.
pub(super) struct Declaration {
    pub(super) keys: Keys,
    pub(super) function: Function,
}

/// A function without its body. The macro does not read the body, so the body may even be unfinished.
pub(super) struct Function {
    pub(super) attributes: Vec<Attribute>,
    pub(super) visibility: Visibility,
    pub(super) signature: Signature,
}

/// A checked handler.
pub(super) struct Handler<'a> {
    pub(super) ident: &'a Ident,
    pub(super) visibility: &'a Visibility,
    /// The `cfg` attributes of the function. The generated items get the same ones.
    pub(super) conditions: Vec<&'a Attribute>,
    pub(super) consumer: &'a LitStr,
    pub(super) crate_path: Path,
    /// The messages that it takes undecoded, instead of those of an event.
    pub(super) messages: Option<Vec<Pattern>>,
    /// The type of the event, the first argument.
    pub(super) event: &'a Type,
    /// The types of all arguments, including the event.
    pub(super) arguments: Vec<&'a Type>,
    pub(super) output: &'a Type,
    pub(super) options: Options<'a>,
}

/// The options that the user wrote. No code is generated for other options, so the runtime's defaults apply.
#[derive(Default)]
pub(super) struct Options<'a> {
    pub(super) strategy: Option<Strategy>,
    /// A legal value of the key `order`.
    pub(super) order: Option<&'a Ident>,
    pub(super) batch: Option<u32>,
    pub(super) attempts: Option<u32>,
    /// Shortest and longest delay.
    pub(super) backoff: Option<(Duration, Duration)>,
    pub(super) timeout: Option<Duration>,
}

/// Messages that a handler takes whatever their Rust types.
#[derive(Debug, PartialEq)]
pub(super) enum Pattern {
    /// `order.placed`, in any version.
    EventType { aggregate: String, name: String },
    /// `order.*`
    Aggregate(String),
    /// `*`
    Everything,
}

/// How duplicates are recognised.
pub(super) enum Strategy {
    MessageId,
    Sequence { gap: Option<Duration> },
    Natural,
    Key(BusinessKey),
    Constraint(Vec<LitStr>),
    External,
}

/// The source of an event's business key.
pub(super) enum BusinessKey {
    Field(Member),
    Function(ExprPath),
}

impl Declaration {
    /// Reads the item. Reports an item that is not a function, and returns `None` for it.
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

    /// The path of the runtime crate.
    pub(super) fn crate_path(&self) -> Path {
        let given = self.keys.crate_path.as_ref().given().cloned();
        given.unwrap_or_else(|| Runtime::Inbox.path())
    }
}

impl Function {
    /// The attributes that decide whether the function is compiled.
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

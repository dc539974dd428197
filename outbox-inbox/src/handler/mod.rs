//! Handlers: their arguments, options, results and errors.
//!
//! Invariant: a handler's transaction is the transaction of its inbox row.

mod context;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod database_error;
mod effect;
mod error;
mod extract;
mod key;
mod options;
mod raw_message;
mod recording;
mod redaction;
mod registration;
mod transaction;

pub use context::{HandlerContext, StateMap};
pub use effect::{Effect, Emit, IntoEffect};
pub use error::HandlerError;
pub use extract::{Event, EventArgument, FromContext, HandlerState, Metadata, StableKey};
pub use options::{HandlerOptions, KeyOf, Order, Strategy};
pub use raw_message::{RawArgument, RawMessage};
pub use registration::{Handler, Invoke, Registration, Requirement, Shape};
pub use transaction::{Outbox, Tx};

#[doc(hidden)]
pub use effect::IntoOutcome;
#[doc(hidden)]
pub use key::{business_key, key_text};
pub use registration::BoxFuture;

pub(crate) use error::describe;
pub(crate) use recording::Recorded;
pub(crate) use redaction::without_values;
pub(crate) use registration::RecordsEvents;

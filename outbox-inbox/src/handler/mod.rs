//! What a handler is: a function, what it takes, and how it fails.
//!
//! Invariant: a handler sees the outside through its arguments only, and the transaction it is given is the one that its inbox
//! row lives in. Absent here: which handlers run ([`crate::router`]) and how they are run ([`crate::runtime`]).

mod context;
mod error;
mod extract;
mod registration;
mod transaction;

pub use context::{HandlerContext, StateMap};
pub use error::HandlerError;
pub use extract::{Event, EventArgument, FromContext, Metadata, StableKey, State};
pub use registration::{Handler, Registration, Requirement};
pub use transaction::{Outbox, Tx};

#[doc(hidden)]
pub use extract::into_outcome;
#[doc(hidden)]
pub use registration::BoxFuture;

pub(crate) use error::describe;

//! What a handler hands back when it succeeds: nothing, a result to be stored, events to be recorded, or both.
//!
//! Invariant: what is handed back is written in the handler's transaction. Not here: writing it ([`crate::runtime`]).

use std::fmt;

use outbox_core::payload::to_json;
use outbox_core::{Events, IntoEvents};
use serde::Serialize;

use super::error::HandlerError;

/// A result that is stored as JSON with the inbox row, and handed back on a duplicate.
///
/// Strategies `message_id` and `key` only, and not for `Vec<Event<T>>`: a batch has no result for each of its messages. At most 1 MiB of JSON.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[derive(serde::Serialize)] struct Receipt { number: u64 }
/// use outbox_inbox::{Event, HandlerError, Reply, idempotent_handler};
///
/// #[idempotent_handler(consumer = "billing", on_duplicate = result)]
/// async fn charge(event: Event<OrderPlaced>) -> Result<Reply<Receipt>, HandlerError> {
///     Ok(Reply(Receipt { number: event.order_id }))
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<T>(pub T);

/// Follow-up events, recorded in the handler's transaction as by [`Outbox::record`](crate::Outbox::record).
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)] #[domain_event(aggregate = "order", name = "reserved")]
/// # struct StockReserved { #[domain_event(aggregate_id)] order_id: u64 }
/// use outbox_inbox::{Emit, Event, HandlerError, idempotent_handler};
///
/// #[idempotent_handler(consumer = "inventory")]
/// async fn reserve(event: Event<OrderPlaced>) -> Result<Emit<[StockReserved; 1]>, HandlerError> {
///     Ok(Emit([StockReserved { order_id: event.order_id }]))
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emit<E>(pub E);

/// What a handler's success comes to.
#[derive(Default)]
pub struct Effect {
    pub(crate) result: Option<Vec<u8>>,
    pub(crate) events: Events,
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Results may hold personal data and stay out of logs.
        f.debug_struct("Effect")
            .field("result_bytes", &self.result.as_ref().map(Vec::len))
            .field("events", &self.events.len())
            .finish()
    }
}

/// What a handler may return inside `Ok`: `()`, [`Reply`], [`Emit`], or `(Reply<T>, Emit<E>)`.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}` inside `Ok`",
    label = "expected `()`, `Reply<T>`, `Emit<E>` or `(Reply<T>, Emit<E>)`",
    note = "wrap a result that is to be stored in `Reply(…)`, and follow-up events in `Emit([…])`"
)]
pub trait IntoEffect {
    /// Whether there is a result to store.
    const REPLIES: bool = false;
    /// Whether there may be events to record.
    const EMITS: bool = false;

    /// Converts the value.
    ///
    /// # Errors
    ///
    /// A fatal error for a result that cannot be JSON, such as a number that is NaN or infinite.
    fn into_effect(self) -> Result<Effect, HandlerError>;
}

impl IntoEffect for () {
    fn into_effect(self) -> Result<Effect, HandlerError> {
        Ok(Effect::default())
    }
}

impl<T: Serialize> IntoEffect for Reply<T> {
    const REPLIES: bool = true;

    fn into_effect(self) -> Result<Effect, HandlerError> {
        let result = to_json(&self.0).map_err(HandlerError::fatal)?;
        Ok(Effect {
            result: Some(result),
            events: Events::new(),
        })
    }
}

impl<E: IntoEvents> IntoEffect for Emit<E> {
    const EMITS: bool = true;

    fn into_effect(self) -> Result<Effect, HandlerError> {
        Ok(Effect {
            result: None,
            events: self.0.into_events(),
        })
    }
}

impl<T: Serialize, E: IntoEvents> IntoEffect for (Reply<T>, Emit<E>) {
    const REPLIES: bool = true;
    const EMITS: bool = true;

    fn into_effect(self) -> Result<Effect, HandlerError> {
        let mut effect = self.0.into_effect()?;
        effect.events = self.1.0.into_events();
        Ok(effect)
    }
}

/// What a handler may return: `Result<T, E>` for a `T` of [`IntoEffect`] and any error that becomes a [`HandlerError`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "expected `Result<(), HandlerError>`",
    note = "inside `Ok`: `()`, `Reply<T>`, `Emit<E>` or `(Reply<T>, Emit<E>)`; inside `Err` any error that implements `std::error::Error + Send + Sync + 'static`, and `?` converts it"
)]
pub trait IntoOutcome {
    const REPLIES: bool;
    const EMITS: bool;

    fn into_outcome(self) -> Result<Effect, HandlerError>;
}

impl<T: IntoEffect, E: IntoFailure> IntoOutcome for Result<T, E> {
    const REPLIES: bool = T::REPLIES;
    const EMITS: bool = T::EMITS;

    fn into_outcome(self) -> Result<Effect, HandlerError> {
        self.map_err(IntoFailure::into_failure)?.into_effect()
    }
}

/// An error that a handler may return. Implemented for every error that becomes a [`HandlerError`]; the trait exists for the compiler's message about other types.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a handler cannot fail with `{Self}`",
    label = "the error does not become a `HandlerError`",
    note = "return `Result<…, HandlerError>`: `?` converts any error that implements `std::error::Error + Send + Sync + 'static`",
    note = "`anyhow::Error` and `Box<dyn Error>` do not implement it: write `.map_err(HandlerError::retry)?`, or `.map_err(HandlerError::fatal)?` if a retry cannot help"
)]
pub trait IntoFailure {
    fn into_failure(self) -> HandlerError;
}

#[diagnostic::do_not_recommend]
impl<E: Into<HandlerError>> IntoFailure for E {
    fn into_failure(self) -> HandlerError {
        self.into()
    }
}

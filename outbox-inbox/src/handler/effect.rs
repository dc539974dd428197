//! The return values of a successful handler: nothing, or follow-up events.

use std::fmt;

use outbox_core::{Events, IntoEvents};

use super::error::HandlerError;

/// Follow-up events of a handler, recorded as by [`Outbox::record`](crate::Outbox::record).
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "reserved")]
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

/// The result of a successful handler.
#[derive(Default)]
pub struct Effect {
    pub(crate) events: Events,
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effect")
            .field("events", &self.events.len())
            .finish()
    }
}

/// The success value of a handler: `()` or [`Emit`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}` inside `Ok`",
    label = "expected `()` or `Emit<E>`",
    note = "wrap follow-up events in `Emit([…])`"
)]
pub trait IntoEffect {
    /// Whether the value may contain events.
    const EMITS: bool = false;

    /// Converts the value to an `Effect`.
    fn into_effect(self) -> Effect;
}

impl IntoEffect for () {
    fn into_effect(self) -> Effect {
        Effect::default()
    }
}

impl<E: IntoEvents> IntoEffect for Emit<E> {
    const EMITS: bool = true;

    fn into_effect(self) -> Effect {
        Effect {
            events: self.0.into_events(),
        }
    }
}

/// `Result<T, E>`, where `T` implements [`IntoEffect`] and `E` converts into [`HandlerError`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "expected `Result<(), HandlerError>`",
    note = "inside `Ok`: `()` or `Emit<E>`; inside `Err` any error that implements `std::error::Error + Send + Sync + 'static`, and `?` converts it"
)]
pub trait IntoOutcome {
    const EMITS: bool;

    fn into_outcome(self) -> Result<Effect, HandlerError>;
}

impl<T: IntoEffect, E: IntoFailure> IntoOutcome for Result<T, E> {
    const EMITS: bool = T::EMITS;

    fn into_outcome(self) -> Result<Effect, HandlerError> {
        self.map(T::into_effect).map_err(IntoFailure::into_failure)
    }
}

/// An error that converts into [`HandlerError`].
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

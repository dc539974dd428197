//! Values that can be recorded together.

use super::error::EventError;
use super::limits::Limits;
use super::new::NewMessage;
use crate::event::DomainEvent;

/// A recordable value: a [`DomainEvent`], or a [`NewMessage`] with headers or a delay.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "cannot be recorded",
    note = "add `#[derive(DomainEvent)]` to `{Self}`, or pass a `NewMessage`"
)]
pub trait IntoMessage {
    /// Encodes the value as a message.
    ///
    /// # Errors
    ///
    /// As [`NewMessage::from_event`].
    fn into_message(self) -> Result<NewMessage, EventError>;
}

impl<E: DomainEvent> IntoMessage for E {
    fn into_message(self) -> Result<NewMessage, EventError> {
        NewMessage::from_event(&self)
    }
}

impl IntoMessage for NewMessage {
    fn into_message(self) -> Result<NewMessage, EventError> {
        Ok(self)
    }
}

/// Events of any types, in recording order.
///
/// ```
/// # use outbox_core::{DomainEvent, Events};
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "paid")]
/// # struct OrderPaid { #[domain_event(aggregate_id)] order_id: u64 }
/// let events = Events::new().with(OrderPlaced { order_id: 7 }).with(OrderPaid { order_id: 7 });
/// assert_eq!(events.len(), 2);
/// ```
///
/// If encoding fails, the save returns the error.
#[derive(Debug, Default)]
pub struct Events(Vec<Result<NewMessage, EventError>>);

impl Events {
    /// No events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event.
    pub fn push(&mut self, event: impl IntoMessage) {
        self.0.push(event.into_message());
    }

    /// Adds an event.
    #[must_use]
    pub fn with(mut self, event: impl IntoMessage) -> Self {
        self.push(event);
        self
    }

    /// Appends other events.
    pub fn append(&mut self, other: Events) {
        self.0.extend(other.0);
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Event types for log lines; encoding errors as text.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|event| match event {
                Ok(message) => format!("{} of {}", message.event_type(), message.aggregate()),
                Err(error) => error.to_string(),
            })
            .collect()
    }

    /// Checks all messages and returns them.
    ///
    /// # Errors
    ///
    /// The first error, in recording order.
    pub fn checked(self, limits: &Limits) -> Result<Vec<NewMessage>, EventError> {
        self.0
            .into_iter()
            .map(|message| {
                let message = message?;
                message.check(limits)?;
                Ok(message)
            })
            .collect()
    }
}

/// Values recorded together: arrays, vectors, options, and [`Events`] for mixed types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a collection of events",
    label = "expected an array, a `Vec`, an `Option` or `Events`",
    note = "wrap a single event in an array: `[event]`; for events of several types use `Events::new().with(a).with(b)`",
    note = "to save a model with events, pass a closure that returns them: `|order| [event]`, or `|_| [event]` if it does not need the model"
)]
pub trait IntoEvents {
    /// Encodes the events, in order.
    fn into_events(self) -> Events;
}

impl IntoEvents for Events {
    fn into_events(self) -> Events {
        self
    }
}

macro_rules! into_events_by_iteration {
    ($([$($generics:tt)*] $ty:ty),*) => {$(
        impl<T: IntoMessage, $($generics)*> IntoEvents for $ty {
            fn into_events(self) -> Events {
                Events(self.into_iter().map(IntoMessage::into_message).collect())
            }
        }
    )*};
}

into_events_by_iteration!([const N: usize] [T; N], [] Vec<T>, [] Option<T>);

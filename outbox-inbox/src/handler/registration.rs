//! Registrations: the static facts about each handler.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use outbox_core::{EventDescriptor, Message};

use super::context::HandlerContext;
use super::effect::Effect;
use super::error::HandlerError;
use super::options::HandlerOptions;
use crate::telemetry;

/// A boxed `Send` future that may borrow data.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A handler as a type: `Router::new().handler::<reserve_stock>()`.
///
/// The attribute [`idempotent_handler`](macro@crate::idempotent_handler) implements `Handler` for a
/// type with the function's name. Without the attribute:
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// use outbox_inbox::{
///     Effect, Event, FromContext, Handler, HandlerError, HandlerOptions, Registration, Shape,
///     Strategy,
/// };
///
/// async fn log_order(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
///     println!("order {}", event.order_id);
///     Ok(())
/// }
///
/// struct LogOrder;
///
/// impl Handler for LogOrder {
///     const REGISTRATION: Registration = Registration {
///         consumer: "audit",
///         handler: "my_service::log_order",
///         events: OrderPlaced::DESCRIPTORS,
///         file: file!(),
///         line: line!(),
///         requires: &[<Event<OrderPlaced> as FromContext<'_>>::REQUIRES],
///         shape: Shape { several: false, transactional: false, emits: false },
///         options: HandlerOptions::new().strategy(Strategy::Natural),
///         invoke: |context| Box::pin(async move {
///             log_order(Event::from_context(&context)?).await.map(|()| Effect::default())
///         }),
///     };
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "expected the name of a function with `#[idempotent_handler]`",
    note = "write `#[idempotent_handler(consumer = \"…\")]` above the function"
)]
pub trait Handler {
    /// The static facts about the handler.
    const REGISTRATION: Registration;
}

/// The static facts about one handler.
#[derive(Clone, Copy)]
pub struct Registration {
    /// Stable name of the consumer, `[A-Za-z0-9_-]{1,64}`; part of the deduplication key.
    pub consumer: &'static str,
    /// Path of the function, for error messages.
    pub handler: &'static str,
    /// Handled events: one entry for a struct, one per variant for an enum, or one per pattern of
    /// the key `messages` ([`EventDescriptor::is_selection`]).
    pub events: &'static [EventDescriptor],
    /// Source file, for error messages only.
    pub file: &'static str,
    /// Line in [`Self::file`].
    pub line: u32,
    /// State required by each argument after the first, in order; `None` for an argument without
    /// state.
    pub requires: &'static [Option<Requirement>],
    /// Properties derived from the handler's signature.
    pub shape: Shape,
    /// Options set by the keys of the `idempotent_handler` attribute.
    pub options: HandlerOptions,
    /// Function that extracts the arguments and calls the handler.
    pub invoke: Invoke,
}

/// Type of [`Registration::invoke`].
pub type Invoke = for<'a> fn(HandlerContext<'a>) -> BoxFuture<'a, Result<Effect, HandlerError>>;

/// The properties derived from a handler's signature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Whether the handler takes `Vec<Event<T>>`.
    pub several: bool,
    /// Whether an argument needs the transaction.
    pub transactional: bool,
    /// Whether the handler returns events ([`Emit`](crate::Emit)).
    pub emits: bool,
}

inventory::collect!(Registration);

impl Registration {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.consumer, self.handler, self.file, self.line)
            == (other.consumer, other.handler, other.file, other.line)
    }

    /// Label of an event type in metrics. For a wildcard handler, senders choose the event type, so
    /// a constant label bounds the cardinality.
    pub(crate) fn label<'a>(&self, message: &'a Message) -> &'a str {
        let mut events = self.events.iter();
        match events.any(|event| event.is_everything() || event.is_whole_aggregate()) {
            true => telemetry::UNDECODED,
            false => &message.event_type,
        }
    }

    pub(crate) fn records(&self) -> bool {
        let takes_outbox = |requirement: &Requirement| (requirement.id)() == TypeId::of::<RecordsEvents>();
        self.shape.emits || self.requires.iter().flatten().any(takes_outbox)
    }
}

#[derive(Debug)]
pub(crate) struct RecordsEvents;

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("consumer", &self.consumer)
            .field("handler", &self.handler)
            .field("file", &self.file)
            .field("line", &self.line)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({}:{})", self.handler, self.file, self.line)
    }
}

/// A type that the application must provide as state.
#[derive(Clone, Copy)]
pub struct Requirement {
    /// Id of the state's type.
    pub id: fn() -> TypeId,
    /// Name of the state's type, for error messages only.
    pub name: fn() -> &'static str,
}

impl fmt::Debug for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Requirement").field(&(self.name)()).finish()
    }
}

//! The options of a handler: the keys of `#[idempotent_handler(…)]` as plain data.
//!
//! Invariant: every option is known at compile time and can be checked before the first message. Not here: what the options do
//! ([`crate::dedup`], [`crate::runtime`]).

use std::time::Duration;

use outbox_core::Message;
use outbox_core::retry::Backoff;

use super::error::HandlerError;

/// How a handler is kept from taking effect twice.
///
/// | strategy | choose it when | costs | remembers |
/// |---|---|---|---|
/// | [`MessageId`](Self::MessageId) | in doubt | a row per message, one insert and one look-up in the handler's transaction | for [`InboxConfig::retention`](crate::InboxConfig::retention) |
/// | [`Sequence`](Self::Sequence) | aggregates live long or streams are replayed from their beginning | a row per aggregate and source, and one per event that was delivered again | for ever |
/// | [`Natural`](Self::Natural) | doing it twice is the same as doing it once (`SET status = 'paid'`, upserts) | nothing, but a row per failed event | nothing |
/// | [`Key`](Self::Key) | different events mean the same thing to do (two producers, one order number) | as `MessageId` | as `MessageId` |
/// | [`Constraint`](Self::Constraint) | the handler's own table has a unique key already | nothing on the good path | as long as the handler's row |
/// | [`External`](Self::External) | the effect lives outside the service's database | two calls of the store | as long as the store keeps it |
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// A row per (consumer, event), inserted first, in the handler's transaction.
    #[default]
    MessageId,
    /// One row per (consumer, aggregate, source) with the last sequence that took effect. An older message has no effect, and a message that is too early waits.
    ///
    /// Only for sequenced events. The consumer is sent every event of the aggregate type, because a number that it never sees would
    /// look like one that is late.
    Sequence {
        /// How long a message waits for missing messages before it, while none of them takes effect. After that, the gap is reported and the message takes
        /// effect. A missing message that arrives later becomes a dead letter. A message that fails and is tried again is not missing: the messages behind it
        /// wait however long it takes. More than [`ack_wait`](crate::InboxConfig::ack_wait), or zero. Default (`None`): twice `ack_wait`.
        ///
        /// Zero means *newest wins*: gaps are normal, nothing waits, and the consumer is sent its own event types only. A message takes effect if its number
        /// is above the last one. Otherwise it is dropped as stale, and no dead letter records it. With several processes that happens in normal operation: of
        /// two messages that arrive at the same time, the older one is dropped if the newer one is first. Choose it for handlers that replace a state by a newer
        /// one, never for handlers that add up.
        gap: Option<Duration>,
    },
    /// The handler can run any number of times. Only failures are recorded.
    Natural,
    /// As `MessageId`, with a business key of the event instead of its id: per consumer, the first event with a key takes effect.
    Key(KeyOf),
    /// A unique violation of one of these constraints is a duplicate. Names as the database reports them: PostgreSQL and MySQL the
    /// constraint's (`reservations_pkey`, `PRIMARY`), SQLite the columns' (`reservations.order_id`). Others are failures.
    ///
    /// On MySQL and MariaDB `PRIMARY` is the primary key of *any* table that the handler writes to: a violation of another one would count as a
    /// duplicate, and the message as handled. Prefer a unique key with a name of its own there.
    Constraint(&'static [&'static str]),
    /// A [`DedupStore`](crate::DedupStore) outside the service's database. Weaker: a crash between the effect and its record lets
    /// it happen again.
    External,
}

impl Strategy {
    /// Whether the strategy keeps a row per message.
    pub(crate) fn keeps_rows(self) -> bool {
        matches!(self, Self::MessageId | Self::Key(_))
    }
}

/// Computes the business key of a message: at most 1,024 bytes of text.
pub type KeyOf = fn(&Message) -> Result<String, HandlerError>;

/// Which messages of a consumer may run at the same time, and which wait for a failed one. All handlers of a consumer agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// Any. A failed message is given back to the broker.
    None,
    /// Messages of one aggregate one after the other, in the order of the stream; a failed one holds back its own aggregate, here in
    /// this process. For order across processes too, add the strategy `sequence`.
    #[default]
    Aggregate,
    /// One message at a time, in all processes together; a failed one holds back all.
    Strict,
}

/// The options of a handler. `HandlerOptions::new()` is what `#[idempotent_handler(consumer = "…")]` alone gives.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// How duplicates are recognised. Default [`Strategy::MessageId`].
    pub strategy: Strategy,
    /// Which messages wait for which. Default [`Order::Aggregate`].
    pub order: Order,
    /// Most messages per transaction, 1 to 1,000. Default 1; 100 for handlers that take `Vec<Event<T>>`.
    pub batch: Option<u32>,
    /// Failed attempts before a message becomes a dead letter. Default [`InboxConfig::attempts_max`](crate::InboxConfig::attempts_max).
    pub attempts_max: Option<u32>,
    /// Delays between attempts. Default [`InboxConfig::backoff`](crate::InboxConfig::backoff).
    pub backoff: Option<Backoff>,
    /// Longest run. Default [`InboxConfig::handler_timeout`](crate::InboxConfig::handler_timeout).
    pub timeout: Option<Duration>,
}

/// Messages per transaction of a handler that takes several and does not say how many.
const BATCH_DEFAULT: u32 = 100;

impl HandlerOptions {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            strategy: Strategy::MessageId,
            order: Order::Aggregate,
            batch: None,
            attempts_max: None,
            backoff: None,
            timeout: None,
        }
    }

    outbox_core::__setters! {
        const strategy: Strategy as strategy,
        const order: Order as order,
        const batch: u32 as Some(batch),
        const attempts_max: u32 as Some(attempts_max),
        const backoff: Backoff as Some(backoff),
        const timeout: Duration as Some(timeout),
    }

    /// Messages per transaction.
    pub(crate) fn batch_max(&self, takes_several: bool) -> usize {
        let default = if takes_several { BATCH_DEFAULT } else { 1 };
        usize::try_from(self.batch.unwrap_or(default)).unwrap_or(usize::MAX)
    }
}

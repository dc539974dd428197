//! The options of a handler: the keys of `#[idempotent_handler(…)]` as plain data.

use std::time::Duration;

use outbox_core::Message;
use outbox_core::retry::Backoff;

use super::error::HandlerError;

/// How duplicates of a message are recognised.
///
/// - [`MessageId`](Self::MessageId): the default. One insert and one query per message; inbox rows
///   are kept for [`InboxConfig::retention`](crate::InboxConfig::retention).
/// - [`Sequence`](Self::Sequence): for long-lived aggregates, or replays of a stream. One row per
///   aggregate and source, which never expires, and one row per redelivered event.
/// - [`Natural`](Self::Natural): for idempotent effects (`SET status = 'paid'`, upserts). One row
///   per failed event.
/// - [`Key`](Self::Key): for different events with the same meaning. Cost and retention are the
///   same as with `MessageId`.
/// - [`Constraint`](Self::Constraint): for handlers with a unique key in their own table. Costs
///   nothing without duplicates. A duplicate is recognised while the handler's own row is kept.
/// - [`External`](Self::External): for effects outside the service's database. The runtime calls
///   the deduplication store twice per message.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// The inbox inserts one row per (consumer, event) at the start of the handler's transaction.
    #[default]
    MessageId,
    /// The inbox keeps one row per (consumer, aggregate, source) with the last applied sequence. A
    /// message with an older sequence has no effect. A message after a gap waits for the missing
    /// messages.
    ///
    /// All events must have a sequence. The consumer receives every event type of the aggregate
    /// type, because an event that is not received would leave a gap.
    Sequence {
        /// How long a message after a gap waits. After this time the gap is reported and the
        /// message is applied; a missing message that arrives later becomes a dead letter. A failed
        /// message is not missing. Must be more than [`ack_wait`](crate::InboxConfig::ack_wait), or
        /// zero. Default (`None`): twice `ack_wait`.
        ///
        /// Zero means *newest wins*: no message waits, and the consumer receives only the event
        /// types of its handlers. A message with a sequence up to the last applied sequence is
        /// dropped as stale, without a dead letter. Use zero only for handlers that overwrite a
        /// state, never for handlers that accumulate.
        gap: Option<Duration>,
    },
    /// No message is a duplicate, because the handler is idempotent. Only failures are recorded.
    Natural,
    /// A business key of the event replaces its id: only the first event with a key is applied.
    Key(KeyOf),
    /// A unique violation of a named constraint is a duplicate; other violations are failures.
    /// PostgreSQL and MySQL report the constraint (`reservations_pkey`, `PRIMARY`), SQLite the
    /// columns (`reservations.order_id`).
    ///
    /// On MySQL and MariaDB `PRIMARY` is the primary key of *any* table: prefer a named unique key.
    Constraint(&'static [&'static str]),
    /// A [`DedupStore`](crate::DedupStore) records applied events. A crash between the effect and
    /// its record repeats the effect.
    External,
}

impl Strategy {
    pub(crate) fn keeps_rows(self) -> bool {
        matches!(self, Self::MessageId | Self::Key(_))
    }
}

/// Computes the business key of a message: 1 to 1,024 bytes.
pub type KeyOf = fn(&Message) -> Result<String, HandlerError>;

/// Which messages of a consumer wait for each other. All handlers of a consumer must declare the
/// same `Order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// No message waits for another message.
    None,
    /// Messages of one aggregate run one at a time, in stream order. A failed message blocks its
    /// aggregate in this process only; for order across processes, add the strategy `sequence`.
    #[default]
    Aggregate,
    /// One message at a time across all processes. A failed message blocks all other messages.
    Strict,
}

/// The options of a handler. `HandlerOptions::new()` equals `#[idempotent_handler(consumer =
/// "…")]`.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// How duplicates are recognised. Default [`Strategy::MessageId`].
    pub strategy: Strategy,
    /// Which messages wait for each other. Default [`Order::Aggregate`].
    pub order: Order,
    /// Maximum messages per transaction, 1 to 1,000. Default 1; 100 for handlers that take
    /// `Vec<Event<T>>`.
    pub batch: Option<u32>,
    /// Failed attempts before a message becomes a dead letter. Default
    /// [`InboxConfig::attempts_max`](crate::InboxConfig::attempts_max).
    pub attempts_max: Option<u32>,
    /// Delays between attempts. Default [`InboxConfig::backoff`](crate::InboxConfig::backoff).
    pub backoff: Option<Backoff>,
    /// Maximum run time of the handler. Default
    /// [`InboxConfig::handler_timeout`](crate::InboxConfig::handler_timeout).
    pub timeout: Option<Duration>,
}

const BATCH_DEFAULT: u32 = 100;

impl HandlerOptions {
    /// The default options.
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

    pub(crate) fn batch_max(&self, takes_several: bool) -> usize {
        let default = if takes_several { BATCH_DEFAULT } else { 1 };
        usize::try_from(self.batch.unwrap_or(default)).unwrap_or(usize::MAX)
    }
}

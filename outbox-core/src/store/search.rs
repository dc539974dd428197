//! A search among published messages that reads a bounded number of rows, whatever the outbox holds.
//!
//! Stores keep no index of published messages but that of their ids, because each publishing would have to maintain it. So whoever looks for those of one aggregate,
//! or around one time, reads rows of everybody, and says how many.

use std::num::NonZeroU32;

use time::OffsetDateTime;

use super::StoredMessage;
use crate::message::Aggregate;

/// What to look for among published messages, logged ones included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// Only messages of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Only messages whose ids were made at this time or later, by the clocks of their writers. A
    /// copy has the time of its replay. A store with ids that name no time searches all messages.
    pub from: Option<OffsetDateTime>,
    /// Only messages whose ids were made before this time.
    pub until: Option<OffsetDateTime>,
    /// The most messages, of any status and of anybody, that are read for it.
    pub looked_at_max: NonZeroU32,
    /// The most that are returned.
    pub limit: NonZeroU32,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// The messages that match, the last id first.
    pub messages: Vec<FoundPublished>,
    /// Messages whose ids were made in this millisecond or before may not have been read, because `looked_at_max` was reached; `None` if all was read.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The message as lists show it.
    pub stored: StoredMessage,
    /// The header that names the event because of which it was recorded; `None` also if the headers cannot be read.
    pub causation_id: Option<String>,
}

//! A row of the in-memory outbox.

use std::sync::Arc;

use outbox_core::log::{LoggedMessage, Position};
use outbox_core::message::{Aggregate, Message};
use outbox_core::store::{FetchedRow, MessageStatus, StoredMessage};
use time::OffsetDateTime;

/// A committed message of a [`MemoryStore`](super::MemoryStore).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoredRow {
    /// The row id.
    pub row_id: i64,
    /// The message.
    pub message: Message,
    /// The message's status.
    pub status: MessageStatus,
    /// Attempts used.
    pub attempts: u32,
    /// Failures of any kind.
    pub failures: u32,
    /// The last error, if any.
    pub last_error: Option<String>,
    /// Whether the message halts its aggregate.
    pub halts: bool,
    /// The deduplication key, if any.
    pub dedup_key: Option<String>,
    /// The earliest publishing time of a delayed message.
    pub available_at: Option<OffsetDateTime>,
    /// The publishing time; `None` if not published.
    pub published_at: Option<OffsetDateTime>,
    pub(super) is_unreadable: bool,
    pub(super) waits_until: OffsetDateTime,
}

/// Position of an original or a copy in the publishing order of its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Sequence(u64),
    Copy(i64),
}

impl StoredRow {
    /// The message's aggregate.
    #[must_use]
    pub fn aggregate(&self) -> &Aggregate {
        &self.message.aggregate
    }

    pub(super) fn pending(row_id: i64, message: Message) -> Self {
        Self {
            row_id,
            status: MessageStatus::Pending,
            attempts: 0,
            failures: 0,
            last_error: None,
            halts: false,
            is_unreadable: false,
            dedup_key: None,
            available_at: None,
            waits_until: message.created_at,
            published_at: None,
            message,
        }
    }

    pub(super) fn is_sequenced(&self) -> bool {
        self.message.sequence.is_some()
    }

    pub(super) fn is_logged(&self) -> bool {
        self.status == MessageStatus::Logged
    }

    pub(super) fn place(&self) -> Place {
        let is_copy = self.message.event_id.as_uuid() != self.message.id.as_uuid();
        match self.message.sequence {
            Some(sequence) if !is_copy => Place::Sequence(sequence),
            _ => Place::Copy(self.row_id),
        }
    }

    pub(super) fn delayed_at(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        self.available_at.filter(|at| *at > now)
    }

    /// The row as a fetch at this time returns it.
    #[must_use]
    pub fn fetched(&self, now: OffsetDateTime) -> FetchedRow {
        FetchedRow {
            row_id: self.row_id,
            id: Some(self.message.id),
            partition: self.aggregate().partition(),
            aggregate: self.aggregate().clone(),
            sequenced: self.is_sequenced(),
            attempts: self.attempts,
            failures: self.failures,
            waited: self.status == MessageStatus::Waiting,
            age: (now - self.message.created_at).try_into().unwrap_or_default(),
            message: match self.is_unreadable {
                true => Err("headers are not JSON: injected fault".to_owned().into()),
                false => Ok(Arc::new(self.message.clone())),
            },
        }
    }

    pub(super) fn stored(&self) -> StoredMessage {
        StoredMessage {
            row_id: self.row_id,
            id: self.message.id,
            event_id: self.message.event_id,
            aggregate: self.aggregate().clone(),
            sequence: self.message.sequence,
            event_type: self.message.event_type.clone(),
            status: self.status,
            attempts: self.attempts,
            failures: self.failures,
            error: self.last_error.clone(),
            halts: self.halts,
            created_at: self.message.created_at,
            published_at: self.published_at,
        }
    }

    pub(super) fn logged(&self, end: Position) -> LoggedMessage {
        let created_at = self.message.created_at;
        LoggedMessage {
            id: self.message.id,
            row: FetchedRow {
                attempts: 0,
                failures: 0,
                waited: false,
                ..self.fetched(created_at)
            },
            transaction: 0,
            passed_from: end,
            created_at,
            available_at: self.available_at,
        }
    }
}

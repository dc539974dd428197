//! The identity of a row, and the verdict on it.

use crate::message::MessageId;

use super::{FetchedRow, Verdict};

/// Identifies a row of the outbox.
///
/// The row id alone is not enough. A database assigns a row id again if its counter is set back,
/// for example by a data-only restore or logical replication, or if a crash loses the end of the
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The row id.
    pub row_id: i64,
    /// The message id; `None` if the row holds no readable one.
    pub id: Option<MessageId>,
}

/// A verdict on a fetched message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The row id.
    pub row_id: i64,
    /// The message id. The verdict holds only for the row that has this id as well; `None` compares
    /// the row id alone.
    pub id: Option<MessageId>,
    /// The partition it belongs to.
    pub partition: u16,
    /// Whether the message was waiting rather than pending; see [`FetchedRow::waited`].
    pub waited: bool,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// The row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }
}

impl FetchedRow {
    /// The row.
    #[must_use]
    pub fn key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: self.id,
        }
    }

    /// This verdict on the row.
    #[must_use]
    pub fn with_verdict(&self, verdict: Verdict) -> Settlement {
        Settlement {
            row_id: self.row_id,
            id: self.id,
            partition: self.partition,
            waited: self.waited,
            verdict,
        }
    }
}

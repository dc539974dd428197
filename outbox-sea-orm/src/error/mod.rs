//! Errors of recording and saving.

pub(crate) mod answer;
pub(crate) mod code;
pub(crate) mod kind;

use outbox_core::EventError;
use sea_orm::DbErr;

use crate::connect::is_out_of_reach;
use crate::error::answer::DatabaseAnswer;
use crate::error::kind::{ErrorKind, is_conflict};

/// Why events were not recorded. The caller must roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event cannot be stored or published. Nothing was written.
    #[error("event cannot be recorded")]
    Event(#[from] EventError),
    /// The events would go to the default tables, but this process uses only other table names.
    /// Nothing was written.
    ///
    /// Record through an [`OutboxConnection`](crate::OutboxConnection) with your
    /// [`OutboxConfig`](crate::OutboxConfig); for handlers, pass the configuration to the inbox. To
    /// use the default tables, call `with_names` with [`TableNames::new`](crate::TableNames::new)
    /// once.
    ///
    /// This check applies to the whole process. The check is off if the process's configurations,
    /// stores or migrations use both default and other names.
    #[error(
        "events would go to the default tables, but this process uses `{in_use}`; record through `OutboxConnection` with the \
         `OutboxConfig` of these tables (handlers: `Inbox::with_outbox`); to use the default tables, call \
         `OutboxConfig::default().with_names(TableNames::new())` at the start"
    )]
    DefaultNames {
        /// Name of a message table that this process uses.
        in_use: String,
    },
    /// The deduplication key is already recorded: an earlier attempt committed, even if its message
    /// is already purged. Deduplication keys are kept for 7 days
    /// (`RelayConfig::dedup_key_retention`).
    #[error("an event with the same deduplication key is already recorded")]
    DuplicateKey {
        /// The database's error, which contains the key.
        source: DbErr,
    },
    /// The database rolled back the whole transaction after an error, or an earlier save or record
    /// was cancelled. Nothing was written. Roll back, and repeat the whole transaction.
    #[error("the transaction no longer exists; roll back and repeat the whole transaction")]
    TransactionLost(#[source] DbErr),
    /// The message exceeds `max_allowed_packet`. Nothing was sent. Do not retry.
    #[error(
        "payload and headers of event `{event_type}` have {size_bytes} bytes, above the database limit of {limit_bytes}; store the data elsewhere \
         and send a reference, or raise `max_allowed_packet` of the server"
    )]
    TooLarge {
        /// Type of the event.
        event_type: String,
        /// Size of payload and headers, in bytes.
        size_bytes: usize,
        /// Limit for payload and headers, in bytes.
        limit_bytes: usize,
    },
    /// The database failed. The error text includes the next step if the error code implies one.
    #[error("outbox could not be written{}", what_to_do(.0))]
    Database(#[source] DbErr),
}

fn what_to_do(error: &DbErr) -> &'static str {
    if DatabaseAnswer::lacks_tables(error) {
        ", because its tables are missing or from an older version; run the migration of outbox-sea-orm"
    } else {
        whether_to_repeat(error)
    }
}

fn whether_to_repeat(error: &DbErr) -> &'static str {
    if is_conflict(error) {
        ", because of a concurrent transaction; repeat the whole transaction"
    } else if is_out_of_reach(error) {
        ", because the database is unreachable or the pool is exhausted; retry when the database is available"
    } else {
        ""
    }
}

impl RecordError {
    /// Error class by the caller's next action.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Event(_) | Self::TooLarge { .. } => ErrorKind::InvalidEvent,
            Self::DefaultNames { .. } => ErrorKind::Misconfigured,
            Self::DuplicateKey { .. } => ErrorKind::AlreadyRecorded,
            Self::Database(error) | Self::TransactionLost(error) => ErrorKind::of(error),
        }
    }

    /// Whether the transaction can succeed if the caller repeats all of it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }
}

/// Why a model and its events were not saved. Neither model nor events are stored, except possibly
/// with [`SaveError::CommitUnknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The events were rejected.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The database failed, or rejected the model or the commit.
    #[error("change could not be written{}", whether_to_repeat(.0))]
    Database(#[source] DbErr),
    /// No row has the primary key to update or delete, and no event was recorded. `save` updates
    /// whenever the primary key is set.
    #[error(
        "no row of `{table}` has the given primary key; for a new row with a client-assigned key (such as a UUID) use \
         `insert_with_events`, because `save` updates whenever the key is set"
    )]
    RowMissing {
        /// Name of the model's table.
        table: String,
    },
    /// The database does not report the affected rows, so no events can be built. Nothing was
    /// stored.
    #[error("events of this save cannot be built: {why}")]
    Unsupported {
        /// Reason and alternative.
        why: &'static str,
    },
    /// The database rolled back the whole joined transaction (deadlock on MySQL, lost connection).
    /// Drop the transaction, and repeat all of it. It cannot be committed; except on SQLite, its
    /// connection is closed.
    #[error("the database rolled back the whole transaction; drop and repeat the whole transaction")]
    TransactionLost(#[source] Box<SaveError>),
    /// The connection was lost during the commit: everything is stored, or nothing. Read the model
    /// back, or save again with the same deduplication key: [`RecordError::DuplicateKey`] proves
    /// that everything is stored.
    #[error("outcome of the commit is unknown; read the model back before repeating the save")]
    CommitUnknown(#[source] DbErr),
}

impl SaveError {
    /// Error class by the caller's next action. [`Self::TransactionLost`] has the inner error's
    /// class.
    ///
    /// ```
    /// # use outbox_sea_orm::{ErrorKind, SaveError};
    /// fn status(error: &SaveError) -> u16 {
    ///     match error.kind() {
    ///         ErrorKind::AlreadyRecorded => 200,
    ///         ErrorKind::RowMissing => 404,
    ///         ErrorKind::Refused | ErrorKind::InvalidEvent => 422,
    ///         ErrorKind::Conflict | ErrorKind::Unavailable => 503, // The client comes back.
    ///         // `CommitUnknown`: it may be stored.
    ///         _ => 500,
    ///     }
    /// }
    /// # assert_eq!(status(&sea_orm::DbErr::RecordNotUpdated.into()), 404);
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Record(error) => error.kind(),
            Self::Database(error) => ErrorKind::of(error),
            Self::RowMissing { .. } => ErrorKind::RowMissing,
            Self::Unsupported { .. } => ErrorKind::Refused,
            Self::TransactionLost(error) => error.kind(),
            Self::CommitUnknown(_) => ErrorKind::CommitUnknown,
        }
    }

    /// Whether the save, or the whole joined transaction, can succeed if repeated. If true, nothing
    /// is stored. False for [`Self::CommitUnknown`], because a repeated save could store everything
    /// twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }
}

/// Converts errors of SeaORM's methods for `?`. Not for errors of a commit.
impl From<DbErr> for SaveError {
    fn from(error: DbErr) -> Self {
        Self::Database(error)
    }
}

impl From<EventError> for SaveError {
    fn from(error: EventError) -> Self {
        Self::Record(error.into())
    }
}

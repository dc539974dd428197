//! Errors of recording and saving, sorted by what the caller can do.

pub(crate) mod answer;
pub(crate) mod code;
pub(crate) mod kind;

use outbox_core::EventError;
use sea_orm::DbErr;

use crate::connect::is_out_of_reach;
use crate::error::answer::DatabaseAnswer;
use crate::error::kind::{ErrorKind, is_conflict};

/// Why events were not recorded. Roll the transaction back, which belongs to the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event cannot be stored or published. Nothing was written.
    #[error("event cannot be recorded")]
    Event(#[from] EventError),
    /// The transaction says nothing about table names, so the events would go to the default tables, but this process only uses tables
    /// with other names. Nothing was written.
    ///
    /// Record through an [`OutboxConnection`](crate::OutboxConnection) with the [`OutboxConfig`](crate::OutboxConfig) of these tables:
    /// over it, or in a transaction from its `begin`. For handlers, give the configuration to the inbox. If the default tables are
    /// meant, call [`OutboxConfig::with_names`](crate::OutboxConfig::with_names) with [`TableNames::new`](crate::TableNames::new) once
    /// at the start; `migrate`, and a relay over them, say so too.
    ///
    /// The check is per process. It finds names in [`OutboxConfig`](crate::OutboxConfig), [`SqlStore`](crate::SqlStore) and the
    /// migrations, and is off where default and other names are both in use.
    #[error(
        "events would go to the default tables, but this process uses `{in_use}`; record through `OutboxConnection` with the \
         `OutboxConfig` of these tables (handlers: `Inbox::with_outbox`), or, if the default tables are meant, call \
         `OutboxConfig::default().with_names(TableNames::new())` at the start"
    )]
    DefaultNames {
        /// The table of messages that this process uses.
        in_use: String,
    },
    /// A message with the same deduplication key was recorded before, so the change was saved then. After an unknown commit, this tells a retry
    /// that the first attempt succeeded, whether or not the message is published and deleted by now. Keys are kept for 7 days
    /// (`RelayConfig::dedup_key_retention`).
    #[error("an event with the same deduplication key is already recorded")]
    DuplicateKey {
        /// The database's error, which names the key.
        source: DbErr,
    },
    /// The database has undone the whole transaction because of an earlier error, or an earlier save
    /// or record was dropped half-way. Nothing was written. Roll back, and repeat the transaction from
    /// its beginning. MySQL and MariaDB undo a transaction after a deadlock or a write conflict.
    #[error("the transaction no longer exists; roll back and repeat it from its beginning")]
    TransactionLost(#[source] DbErr),
    /// MySQL or MariaDB cannot take the message: it is larger than `max_allowed_packet`. Repeating does not help. Nothing of it was sent.
    #[error(
        "payload and headers of event `{event_type}` have {size_bytes} bytes, the database takes {limit_bytes}; store the data elsewhere \
         and send a reference, or raise `max_allowed_packet` of the server"
    )]
    TooLarge {
        /// The event type.
        event_type: String,
        /// Actual size.
        size_bytes: usize,
        /// The most that the server takes, for payload and headers.
        limit_bytes: usize,
    },
    /// The database failed. The text says what to do, if the database has told: see also [`Self::is_conflict`].
    #[error("outbox could not be written{}", what_to_do(.0))]
    Database(#[source] DbErr),
}

/// What to do about a database error, as the end of a message.
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
        ", because the database is out of reach or the pool had no connection to give; repeat it when the database answers"
    } else {
        ""
    }
}

impl RecordError {
    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Event(_) | Self::TooLarge { .. } => ErrorKind::InvalidEvent,
            Self::DefaultNames { .. } => ErrorKind::Misconfigured,
            Self::DuplicateKey { .. } => ErrorKind::AlreadyRecorded,
            Self::Database(error) | Self::TransactionLost(error) => ErrorKind::of(error),
        }
    }

    /// Whether the whole transaction can succeed if it is repeated as it is: the database was out of reach, or a concurrent transaction won.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Whether the transaction has lost against a concurrent one: a deadlock, a serialization failure, a lock that was not granted in time.
    /// Repeat the whole transaction then.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.kind() == ErrorKind::Conflict
    }
}

/// Why a model and its events were not saved. Except with [`SaveError::CommitUnknown`], nothing of either is stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The events were refused.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The model was refused, or the database failed, or it refused the commit.
    #[error("change could not be written{}", whether_to_repeat(.0))]
    Database(#[source] DbErr),
    /// MySQL or MariaDB cannot take the row: it is larger than `max_allowed_packet`. Repeating does not help. Nothing of it was sent, and an open
    /// transaction is as it was before.
    #[error(
        "the row of `{table}` has {size_bytes} bytes, the database takes {limit_bytes}; store the data elsewhere and keep a reference, or \
         raise `max_allowed_packet` of the server"
    )]
    RowTooLarge {
        /// The table.
        table: String,
        /// Size of the values that would be sent.
        size_bytes: usize,
        /// The most that the server takes.
        limit_bytes: usize,
    },
    /// There is no row to update. `save` updates whenever the primary key is set.
    #[error(
        "no row of `{table}` has the given primary key; for a new row whose key the client assigns (a UUID, say) use \
         `insert_with_events`, because `save` updates as soon as the key is set"
    )]
    RowMissing {
        /// The table.
        table: String,
    },
    /// There is no row to delete, so there was nothing to report.
    #[error("no row of `{table}` has the given primary key; nothing was deleted and no event recorded")]
    NothingDeleted {
        /// The table.
        table: String,
    },
    /// The events cannot be made, because it is not known which rows are written, or how. Nothing was stored. The text says what to do instead.
    #[error("events of this save cannot be made: {why}")]
    Unsupported {
        /// Why, and what to do instead.
        why: &'static str,
    },
    /// The save failed inside a transaction, and the database has undone the whole transaction (a deadlock on MySQL, a lost connection).
    /// Earlier writes are gone. Drop the transaction, and repeat it from its beginning. It can no longer be committed; on servers its connection
    /// is closed.
    #[error("the database has undone the whole transaction; drop it and repeat it from its beginning")]
    TransactionLost(#[source] Box<SaveError>),
    /// The connection was lost during the commit: either everything is stored, or nothing. Read the model back; or, if the events have a
    /// deduplication key, save again: [`RecordError::DuplicateKey`] then proves that everything is stored.
    #[error("outcome of the commit is unknown")]
    CommitUnknown(#[source] DbErr),
}

impl SaveError {
    /// What the caller can do about it. For [`Self::TransactionLost`], the kind of the error that it holds, and the whole transaction is meant.
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
            Self::RowMissing { .. } | Self::NothingDeleted { .. } => ErrorKind::RowMissing,
            Self::Unsupported { .. } | Self::RowTooLarge { .. } => ErrorKind::Refused,
            Self::TransactionLost(error) => error.kind(),
            Self::CommitUnknown(_) => ErrorKind::CommitUnknown,
        }
    }

    /// Whether the save, or the whole transaction that it had joined, can succeed if it is repeated as it is: the database was out of reach, or a
    /// concurrent transaction won. Nothing is stored then. [`Self::CommitUnknown`] is not retryable: a repeated save could store everything twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Whether the transaction has lost against a concurrent one: a deadlock, a serialization failure, a lock that was not granted in time.
    /// Repeat the save, or the whole transaction that it had joined.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.kind() == ErrorKind::Conflict
    }
}

/// So that `?` works on SeaORM's own methods in a function that returns [`SaveError`]. Not for errors of a commit.
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

//! Why something was not recorded or saved, sorted by what the caller can do about it.

use outbox_core::EventError;
use sea_orm::DbErr;

use crate::insert::InsertError;

/// Why events were not recorded. The transaction is the caller's: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event cannot be stored or published. Nothing was written.
    #[error("event cannot be recorded")]
    Event(#[from] EventError),
    /// A message with the same deduplication key exists: what it reports has been saved before. After an unknown commit this
    /// is how a retry learns that the first attempt succeeded.
    #[error("an event with the same deduplication key is already recorded")]
    DuplicateKey {
        /// The database's error, which names the key.
        source: DbErr,
    },
    /// The database failed.
    #[error("outbox could not be written; if the tables are missing, run the migration of outbox-sea-orm")]
    Database(#[source] DbErr),
}

impl From<InsertError> for RecordError {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::DuplicateKey(source) => Self::DuplicateKey { source },
            InsertError::Database(source) => Self::Database(source),
        }
    }
}

/// Why a model and its events were not saved. Except with [`SaveError::CommitUnknown`], nothing of either is stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The events were refused.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The model was refused, or the database failed.
    #[error("model could not be written")]
    Database(#[source] DbErr),
    /// `update` or `save` addressed a row that does not exist. `save` updates whenever the primary key is set.
    #[error(
        "no row of `{table}` has the given primary key; for a new row whose key the client assigns (a UUID, say) use \
         `insert_with_events`, because `save` updates as soon as the key is set"
    )]
    RowMissing {
        /// The table.
        table: String,
    },
    /// `delete` found no row, so there is nothing the events could report.
    #[error("no row of `{table}` has the given primary key; nothing was deleted and no event recorded")]
    NothingDeleted {
        /// The table.
        table: String,
    },
    /// The save failed inside a transaction, and the database has undone that transaction as a whole: a deadlock on MySQL, a lost
    /// connection. What was written before is gone. Do not go on with it; drop it, and repeat all of it.
    #[error("the database has undone the whole transaction; drop it and repeat it from its beginning")]
    TransactionLost(#[source] Box<SaveError>),
    /// The connection was lost during the commit: everything is stored or nothing is. Read the model back, or give the events a
    /// deduplication key and save again: [`RecordError::DuplicateKey`] then proves that it was stored.
    #[error("outcome of the commit is unknown")]
    CommitUnknown(#[source] DbErr),
}

impl From<EventError> for SaveError {
    fn from(error: EventError) -> Self {
        Self::Record(error.into())
    }
}

//! Pauses consumers in all their processes.
//!
//! Invariant: a consumer is paused while `inbox_pauses` has its row.

use futures_util::future::BoxFuture;
use outbox_core::Operation;
use outbox_sea_orm::TableNames;
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr, QueryResult};
use time::OffsetDateTime;

use crate::columns::{micros, read_consumer, read_time};
use crate::database::Database;
use crate::dedup::sql::InboxSql;
use crate::operate::check_consumer_name;
use crate::operations::Note;

/// The paused consumers of a database.
///
/// A pause survives restarts. Every process of a paused consumer stops receiving and starting
/// handlers within two seconds if it can reach the database; running handlers finish. Waiting
/// messages use no attempts, but can expire in the stream.
///
/// ```
/// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), sea_orm::DbErr> {
/// use outbox_inbox::PausedConsumers;
///
/// let paused = PausedConsumers::new(db);
/// paused.pause("shipping", "the carrier is away until Monday").await?;
/// for consumer in paused.list().await? {
///     println!("{} since {}: {}", consumer.consumer, consumer.paused_at, consumer.reason);
/// }
/// paused.resume("shipping").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PausedConsumers {
    db: DatabaseConnection,
    names: TableNames,
    operation: Option<Operation>,
}

/// A paused consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PausedConsumer {
    /// Name of the consumer.
    pub consumer: String,
    /// Reason, for display.
    pub reason: String,
    /// Start of the pause, by the database's clock.
    pub paused_at: OffsetDateTime,
}

impl PausedConsumers {
    /// Uses the table with the default name.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            names: TableNames::default(),
            operation: None,
        }
    }

    /// Records changes in the audit log, as
    /// [`DeadLetters::written_down`](crate::DeadLetters::written_down).
    #[must_use]
    pub fn written_down(mut self, operation: &Operation) -> Self {
        self.operation = Some(operation.clone());
        self
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Pauses a consumer. Returns false and keeps the first reason if it was already paused.
    ///
    /// # Errors
    ///
    /// The database's error; [`DbErr::Custom`] for an invalid consumer name.
    ///
    /// # Cancellation
    ///
    /// The pause is one transaction: after a drop of the future the consumer may be paused or not.
    pub async fn pause(&self, consumer: &str, reason: &str) -> Result<bool, DbErr> {
        check_consumer_name(consumer).map_err(|error| DbErr::Custom(error.to_string()))?;
        let inbox = self.sql();
        let mut sql = inbox.sql(format!(
            "INSERT INTO {} (consumer, reason, paused_at) VALUES (",
            inbox.pauses()
        ));
        sql.bind(inbox.key(consumer))
            .push(", ")
            .bind(outbox_core::store::storable_error(reason))
            .push(&format!(", {})", inbox.now()));
        self.change(move |tx| Box::pin(async move { inbox.insert_once(tx, sql).await }))
            .await
    }

    async fn change(
        &self,
        change: impl for<'a> FnOnce(&'a DatabaseTransaction) -> BoxFuture<'a, Result<bool, DbErr>>
        + Send
        + 'static,
    ) -> Result<bool, DbErr> {
        let note = self
            .operation
            .as_ref()
            .map(|operation| Note::new(&self.db, &self.names, operation));
        let database = Database::inspect(self.db.clone()).await?;
        outbox_sea_orm::detached(async move {
            let tx = database.begin().await?;
            let changed = change(&tx).await?;
            if let Some(note) = note.as_ref().filter(|_| changed) {
                note.done(&tx).await?;
            }
            tx.commit().await?;
            Ok(changed)
        })
        .await
    }

    /// Ends the pause of a consumer. Returns false if it was not paused.
    ///
    /// # Errors
    ///
    /// The database's error.
    ///
    /// # Cancellation
    ///
    /// The rules of [`Self::pause`] apply.
    pub async fn resume(&self, consumer: &str) -> Result<bool, DbErr> {
        let inbox = self.sql();
        let mut sql = inbox.sql(format!("DELETE FROM {} WHERE consumer = ", inbox.pauses()));
        sql.bind(inbox.key(consumer));
        self.change(move |tx| {
            Box::pin(async move { Ok(tx.execute_raw(sql.statement()).await?.rows_affected() > 0) })
        })
        .await
    }

    /// Lists the paused consumers by name.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn list(&self) -> Result<Vec<PausedConsumer>, DbErr> {
        let inbox = self.sql();
        let micros = micros(inbox.backend(), "paused_at");
        let mut sql = inbox.sql(format!(
            "SELECT consumer, reason, {micros} AS paused_micros FROM {} ORDER BY consumer",
            inbox.pauses()
        ));
        let rows = self.db.query_all_raw(sql.statement()).await?;
        let read = |row: &QueryResult| {
            Ok(PausedConsumer {
                consumer: read_consumer(row, inbox.backend())?,
                reason: row.try_get("", "reason")?,
                paused_at: read_time(row, "paused_micros")?,
            })
        };
        rows.iter().map(read).collect()
    }

    fn sql(&self) -> InboxSql {
        InboxSql::of(&self.db, &self.names)
    }
}

pub(crate) async fn paused(db: &DatabaseConnection, inbox: &InboxSql) -> Result<Vec<String>, DbErr> {
    let mut sql = inbox.sql(format!("SELECT consumer FROM {}", inbox.pauses()));
    let rows = db.query_all_raw(sql.statement()).await?;
    rows.iter()
        .map(|row| read_consumer(row, inbox.backend()))
        .collect()
}

//! Records events in a transaction that sqlx began (feature `sqlx`), for services that use SeaORM only in part.
//!
//! Invariant: there is one way to record. A connection of sqlx is wrapped as a connection of SeaORM, so that checks, statements and numbers are
//! those of [`record`](crate::record()). Not here: a transaction that refuses its commit, see [`OutboxTransaction`](crate::OutboxTransaction).

use std::fmt;
use std::sync::Arc;

use outbox_core::{IntoEvents, MessageId, wake};
use sea_orm::sqlx::{self, AssertSqlSafe, Connection as _, Executor as _, Transaction};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr, Statement};
use tokio::sync::Mutex;

use self::sealed::Live;
use crate::config::OutboxConfig;
use crate::error::RecordError;
use crate::sql::query;
use crate::write::integrity::rollback::is_undone;
use crate::write::record::record_events;
use crate::write::transaction::DEFAULT_CONFIG;
use crate::write::transaction::look;

/// An open transaction of sqlx: a `sqlx::Transaction`, or the connection (`&mut PgConnection`) of one. With PostgreSQL, MySQL or MariaDB, and SQLite.
///
/// It is sqlx 0.9, which SeaORM 2 uses, and re-exports as `sea_orm::sqlx`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction of sqlx",
    label = "events cannot be recorded in this",
    note = "begin a transaction (`let mut tx = pool.begin().await?`) and pass `&mut tx`, or `&mut *connection` inside one"
)]
pub trait SqlxTransaction: sealed::Connection {}

impl<C: sealed::Connection> SqlxTransaction for C {}

pub(crate) mod sealed {
    use sea_orm::sqlx;

    pub trait Connection: Send {
        fn live(&mut self) -> Live<'_>;
    }

    /// The connection, whatever its driver.
    #[derive(Debug)]
    pub enum Live<'c> {
        #[cfg(feature = "postgres")]
        Postgres(&'c mut sqlx::PgConnection),
        #[cfg(feature = "mysql")]
        MySql(&'c mut sqlx::MySqlConnection),
        #[cfg(feature = "sqlite")]
        Sqlite(&'c mut sqlx::SqliteConnection),
    }
}

macro_rules! driver {
    ($feature:tt, $Driver:ident, $Connection:ident) => {
        #[cfg(feature = $feature)]
        impl sealed::Connection for sqlx::$Connection {
            fn live(&mut self) -> Live<'_> {
                Live::$Driver(self)
            }
        }

        #[cfg(feature = $feature)]
        impl sealed::Connection for Transaction<'_, sqlx::$Driver> {
            fn live(&mut self) -> Live<'_> {
                Live::$Driver(self)
            }
        }
    };
}

driver!("postgres", Postgres, PgConnection);
driver!("mysql", MySql, MySqlConnection);
driver!("sqlite", Sqlite, SqliteConnection);

/// Records events in an open transaction of sqlx: they exist if and only if it commits. Everything is as with [`record`](crate::record()): the
/// checks, the numbers, the deduplication keys, the ambient context, and the locks.
///
/// The events go to the default tables; [`record_with`] records elsewhere. [`commit`] wakes the relays of this process. After sqlx's own commit
/// they find the messages with their next poll (within 1 s by default).
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: i64 }
/// # #[cfg(feature = "postgres")]
/// # async fn demo(pool: sea_orm::sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use sea_orm::sqlx; // Or the crate `sqlx` 0.9, which it is.
///
/// let mut tx = pool.begin().await?;
/// let order_id: i64 = sqlx::query_scalar("INSERT INTO orders DEFAULT VALUES RETURNING id").fetch_one(&mut *tx).await?;
/// outbox_sea_orm::sqlx::record(&mut tx, [OrderPlaced { order_id }]).await?;
/// outbox_sea_orm::sqlx::commit(tx).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Not here
///
/// A transaction of sqlx remembers nothing, so it cannot refuse its commit: neither after an error, nor after a future of this function that was
/// dropped. Nor is it repeated after a conflict: [`OutboxConnection::transaction`](crate::OutboxConnection::transaction) does both. It has no
/// table names or limits of its own: pass them with each call.
///
/// # Errors
///
/// [`RecordError`]; roll the transaction back then. If the caller ignores the error, the change is committed without its events. On PostgreSQL the
/// transaction is of no use after an error of the database, and sqlx's own commit reports success although the server rolls back; [`commit`] does not.
/// [`RecordError::TransactionLost`] if MySQL, MariaDB or SQLite has undone the whole transaction because of an earlier error; a commit then fails.
/// [`RecordError::NoTransaction`] for a connection that is not in a transaction.
///
/// # Cancellation
///
/// If the future is dropped before it is ready, the transaction is undecided: drop it too, which rolls it back.
pub async fn record<T: SqlxTransaction + ?Sized>(
    tx: &mut T,
    events: impl IntoEvents,
) -> Result<Vec<MessageId>, RecordError> {
    record_with(tx, &DEFAULT_CONFIG, events).await
}

/// As [`record`], into the tables and with the limits of the configuration.
///
/// # Errors
///
/// As [`record`].
pub async fn record_with<T: SqlxTransaction + ?Sized>(
    tx: &mut T,
    config: &OutboxConfig,
    events: impl IntoEvents,
) -> Result<Vec<MessageId>, RecordError> {
    let events = events.into_events();
    let plain = Plain::new(tx.live());
    // Outside of a transaction each statement would be committed by itself. Also after a `begin` that was dropped: sqlx 0.9.0 rolls the outer
    // transaction back then.
    if !plain.is_open().await {
        return Err(RecordError::NoTransaction);
    }
    // The caller may have ignored an error with which the server undid the transaction.
    if is_undone(&plain).await.map_err(RecordError::Database)? {
        return Err(RecordError::TransactionLost(lost()));
    }
    let recorded = record_events(&plain, config, events).await;
    if let Err(RecordError::Database(_)) = &recorded {
        // Closes the connection of an undone transaction. The caller gets the first error.
        let _ = is_undone(&plain).await;
    }
    recorded
}

/// Commits a transaction of sqlx, and wakes the relays of this process. (A nested one releases its savepoint, and wakes them too early, which
/// does no harm.)
///
/// A statement is run first, to see whether the transaction still exists (one round trip, not on SQLite). PostgreSQL answers the commit of a failed
/// transaction with a rollback, and MySQL and MariaDB the commit of an undone one with nothing; sqlx 0.9.0 reports both as success.
///
/// # Errors
///
/// The database's error: [`is_commit_refused`](crate::is_commit_refused) says whether nothing is stored, or the outcome is unknown.
///
/// # Cancellation
///
/// If the future is dropped before it is ready, the outcome is unknown.
pub async fn commit<'c, D>(mut tx: Transaction<'c, D>) -> Result<(), DbErr>
where
    D: sqlx::Database,
    Transaction<'c, D>: SqlxTransaction,
{
    let plain = Plain::new(sealed::Connection::live(&mut tx));
    if !plain.is_open().await {
        return Err(DbErr::Custom(
            "the transaction is lost: sqlx has rolled it back, because a nested `begin` was dropped; begin again".to_owned(),
        ));
    }
    if is_undone(&plain).await? {
        return Err(lost());
    }
    look(&plain).await?;
    tx.commit().await.map_err(exec_failed)?;
    // A crash before this line delays the messages by one poll.
    wake::notify();
    Ok(())
}

/// A borrowed connection of sqlx as SeaORM's `ConnectionTrait`.
struct Plain<'c> {
    backend: DbBackend,
    live: Mutex<Live<'c>>,
}

/// Runs the same code for a connection of any driver.
macro_rules! with {
    ($plain:expr, $live:ident => $work:expr) => {
        match &mut *$plain.live.lock().await {
            #[cfg(feature = "postgres")]
            Live::Postgres($live) => $work,
            #[cfg(feature = "mysql")]
            Live::MySql($live) => $work,
            #[cfg(feature = "sqlite")]
            Live::Sqlite($live) => $work,
        }
    };
}

impl<'c> Plain<'c> {
    fn new(live: Live<'c>) -> Self {
        let backend = match live {
            #[cfg(feature = "postgres")]
            Live::Postgres(_) => DbBackend::Postgres,
            #[cfg(feature = "mysql")]
            Live::MySql(_) => DbBackend::MySql,
            #[cfg(feature = "sqlite")]
            Live::Sqlite(_) => DbBackend::Sqlite,
        };
        Self {
            backend,
            live: Mutex::new(live),
        }
    }

    /// Whether sqlx has begun a transaction and not ended it.
    async fn is_open(&self) -> bool {
        with!(self, live => live.is_in_transaction())
    }
}

impl fmt::Debug for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("backend", &self.backend).finish()
    }
}

#[async_trait::async_trait]
impl ConnectionTrait for Plain<'_> {
    fn get_database_backend(&self) -> DbBackend {
        self.backend
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        with!(self, live => query(&statement).execute(&mut **live).await.map(ExecResult::from))
            .map_err(exec_failed)
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let sql = AssertSqlSafe(sql.to_owned());
        with!(self, live => live.execute(sql).await.map(ExecResult::from)).map_err(exec_failed)
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        with!(self, live => {
            let row = query(&statement).fetch_optional(&mut **live).await;
            row.map(|row| row.map(QueryResult::from))
        })
        .map_err(query_failed)
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        with!(self, live => {
            let rows = query(&statement).fetch_all(&mut **live).await;
            rows.map(|rows| rows.into_iter().map(QueryResult::from).collect())
        })
        .map_err(query_failed)
    }
}

/// The error of work in a lost transaction.
fn lost() -> DbErr {
    DbErr::Custom(
        "the transaction is lost: the database has undone it after an error; roll back and begin again"
            .to_owned(),
    )
}

fn exec_failed(error: sqlx::Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(error)))
}

fn query_failed(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)))
}

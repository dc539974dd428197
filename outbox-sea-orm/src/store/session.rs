//! Holds one pool connection during one call, and closes it if the call is abandoned: sqlx 0.9.0
//! waits forever for a silent connection.
//!
//! Invariants:
//!
//! * A call runs in a separate task, at most [`GRACE`] longer than its caller. Then the connection
//!   is closed, and the call's outcome is unknown.
//! * No connection returns to the pool in a transaction, after a read-only error, or with unread
//!   rows.
//! * Each statement runs READ COMMITTED or in a read-only snapshot, on PostgreSQL never with
//!   `synchronous_commit = off`.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sea_orm::sqlx::pool::PoolConnection;
use sea_orm::sqlx::{self, AssertSqlSafe, Database, Executor};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr, Statement};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OnceCell, oneshot};
use tokio::time::{sleep, timeout};

use super::connection::{Connection, acquire};
use super::refuses_to_write;
use crate::connect::why_no_connection;
use crate::error::code::{has_code, is_transaction_in_progress};
use crate::server::{FIT_MYSQL, question, unfit};
use crate::sql::{Dialect, query};
use crate::task::detached;

const GRACE: Duration = Duration::from_secs(1);

/// Commits a transaction left open by a cancelled `begin()` of the service (sqlx 0.9.0).
const END_OPEN: &str = "BEGIN; COMMIT";

const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
pub(super) struct Isolation {
    postgres: Arc<OnceCell<Defaults>>,
    is_fit: Arc<OnceCell<bool>>,
}

#[derive(Debug, Clone, Copy)]
struct Defaults {
    is_read_committed: bool,
    /// With `synchronous_commit = off`, a crash could lose a lease.
    is_durable: bool,
}

pub(super) async fn call<T, E, F>(
    pool: &DatabaseConnection,
    isolation: &Isolation,
    dialect: Arc<Dialect>,
    work: impl FnOnce(Arc<Session>) -> F + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let session = Arc::new(Session {
        dialect,
        pool: pool.clone(),
        isolation: isolation.clone(),
        connection: Mutex::new(None),
        in_transaction: AtomicBool::new(false),
        owes_rollback: AtomicBool::new(false),
        owes_end: AtomicBool::new(false),
        must_close: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    });
    let (waiting, gone) = oneshot::channel::<()>();
    let outcome = detached(async move {
        let mut work = Box::pin(work(session.clone()));
        let outcome = tokio::select! {
            biased;
            outcome = &mut work => Some(outcome),
            () = session.abandoned(gone) => None,
        };
        session.is_abandoned.store(outcome.is_none(), Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.await;
    drop(waiting);
    match outcome {
        Some(outcome) => outcome,
        None => std::future::pending().await,
    }
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) dialect: Arc<Dialect>,
    pool: DatabaseConnection,
    isolation: Isolation,
    connection: Mutex<Option<Connection>>,
    in_transaction: AtomicBool,
    owes_rollback: AtomicBool,
    /// A statement wrote outside a transaction.
    owes_end: AtomicBool,
    must_close: AtomicBool,
    is_abandoned: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Writes run READ COMMITTED: after a lock wait, a statement reads the current row. InnoDB's
    /// default level would also lock gaps, and block writers.
    Write,
    Read,
}

macro_rules! with {
    ($connection:expr, $live:ident: $Driver:ident => $work:expr) => {
        match $connection {
            #[cfg(feature = "postgres")]
            Connection::Postgres($live) => {
                type $Driver = sqlx::Postgres;
                $work
            }
            #[cfg(feature = "mysql")]
            Connection::MySql($live) => {
                type $Driver = sqlx::MySql;
                $work
            }
            #[cfg(feature = "sqlite")]
            Connection::Sqlite($live) => {
                type $Driver = sqlx::Sqlite;
                $work
            }
            #[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
            Connection::Impossible(never) => super::connection::impossible(never),
        }
    };
}

macro_rules! statement {
    ($session:ident, $own:ident, $live:ident: $Driver:ident => $work:expr) => {{
        let own = $session.$own().await?;
        let done: Result<_, DbErr> = {
            let mut slot = $session.connection.lock().await;
            with!($session.open(&mut slot).await?, $live: $Driver => $work.map_err(|error| $session.failed(error)))
        };
        end(own, done?).await
    }};
}

impl Session {
    pub(super) async fn execute(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        statement!(self, write_transaction, live: Driver => {
            let done = query::<Driver>(&statement).execute(&mut **live).await;
            done.map(ExecResult::from)
        })
    }

    pub(super) async fn execute_unprepared(&self, sql: &str) -> Result<(), DbErr> {
        let mut slot = self.connection.lock().await;
        with!(self.open(&mut slot).await?, live: Driver => {
            execute::<Driver>(live, sql).await.map_err(|error| self.failed(error))
        })
    }

    pub(super) async fn one(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        let own = self.own_transaction().await?;
        let row = self.first_row(statement).await?;
        end(own, row).await
    }

    pub(super) async fn first_row(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        let mut slot = self.connection.lock().await;
        with!(self.open(&mut slot).await?, live: Driver => {
            let row = query::<Driver>(&statement).fetch_optional(&mut **live).await;
            row.map(|row| row.map(QueryResult::from)).map_err(|error| self.failed(error))
        })
    }

    pub(super) async fn all(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        statement!(self, own_transaction, live: Driver => {
            let rows = query::<Driver>(&statement).fetch_all(&mut **live).await;
            rows.map(|rows| rows.into_iter().map(QueryResult::from).collect::<Vec<_>>())
        })
    }

    /// The session's next statement also ends this transaction, which saves two round trips. Other
    /// sessions see the write at the latest when the connection returns to the pool.
    pub(super) fn owe_end(&self) {
        self.owes_end.store(true, Ordering::Relaxed);
    }

    /// The query stops if `take` returns false. The database may keep sending rows: see
    /// [`Self::close`].
    pub(super) async fn each_row<E>(
        &self,
        statement: Statement,
        into: impl Fn(DbErr) -> E,
        mut take: impl FnMut(QueryResult) -> Result<bool, E>,
    ) -> Result<(), E> {
        use futures_util::TryStreamExt as _;

        let own = self.own_transaction().await.map_err(&into)?;
        {
            let mut slot = self.connection.lock().await;
            let () = with!(self.open(&mut slot).await.map_err(&into)?, live: Driver => {
                let mut rows = query::<Driver>(&statement).fetch(&mut **live);
                while let Some(row) = rows.try_next().await.map_err(|error| into(self.failed(error)))? {
                    if !take(QueryResult::from(row))? {
                        break;
                    }
                }
            });
        }
        if self.must_close.load(Ordering::Relaxed) {
            return Ok(());
        }
        end(own, ()).await.map_err(into)
    }

    /// Otherwise the pool would read all unread rows before it reuses the connection. SQLite
    /// computes rows lazily.
    pub(super) fn close(&self) {
        if self.dialect.backend != DbBackend::Sqlite {
            self.must_close.store(true, Ordering::Relaxed);
        }
    }

    async fn own_transaction(&self) -> Result<Option<Transaction<'_>>, DbErr> {
        if self.dialect.backend != DbBackend::Postgres || self.in_transaction.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let defaults = self.defaults().await?;
        if defaults.is_read_committed && defaults.is_durable {
            return Ok(None);
        }
        self.begin().await.map(Some)
    }

    /// Without an own transaction, the statement could join a transaction left open by a cancelled
    /// `begin()` of the service, and be lost.
    async fn write_transaction(&self) -> Result<Option<Transaction<'_>>, DbErr> {
        match self.dialect.backend {
            _ if self.in_transaction.load(Ordering::Relaxed) => Ok(None),
            DbBackend::Postgres => self.begin().await.map(Some),
            DbBackend::MySql => self.execute_unprepared("COMMIT").await.map(|()| None),
            _ => Ok(None),
        }
    }

    async fn defaults(&self) -> Result<Defaults, DbErr> {
        let ask = || async {
            let settings = Statement::from_string(
                DbBackend::Postgres,
                "SELECT current_setting('default_transaction_isolation'), current_setting('synchronous_commit')",
            );
            let row = self.first_row(settings).await?;
            let row = row.ok_or_else(|| DbErr::RecordNotFound("settings of the session".to_owned()))?;
            Ok::<_, DbErr>(Defaults {
                is_read_committed: row.try_get_by_index::<String>(0)? == "read committed",
                is_durable: row.try_get_by_index::<String>(1)? != "off",
            })
        };
        self.isolation.postgres.get_or_try_init(ask).await.copied()
    }

    /// PostgreSQL only. Assumes that all sessions have equal defaults.
    pub(super) async fn shows_commits_early(&self) -> Result<bool, DbErr> {
        Ok(!self.defaults().await?.is_durable)
    }

    fn failed(&self, error: sqlx::Error) -> DbErr {
        let error = DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)));
        if refuses_to_write(&error) {
            tracing::warn!(%error, "the database server is read-only, possibly a former primary; the connection is closed");
            self.close();
        }
        if is_transaction_in_progress(&error) || has_code(&error, &["25001", "25P02"]) {
            tracing::warn!(%error, "a cancelled `begin()` left a transaction open on its connection; the connection is closed");
            self.close();
        }
        error
    }

    pub(super) async fn begin(&self) -> Result<Transaction<'_>, DbErr> {
        self.begin_for(Purpose::Write).await
    }

    pub(super) async fn snapshot(&self) -> Result<Transaction<'_>, DbErr> {
        self.begin_for(Purpose::Read).await
    }

    /// MySQL sets the isolation level before `BEGIN`. If the caller is dropped between both
    /// statements, the connection is closed.
    async fn begin_for(&self, purpose: Purpose) -> Result<Transaction<'_>, DbErr> {
        let statements: &[&str] = match (self.dialect.backend, purpose) {
            (DbBackend::Postgres, Purpose::Write) if !self.defaults().await?.is_durable => {
                &["BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO on"]
            }
            (DbBackend::Postgres, Purpose::Write) => &["BEGIN ISOLATION LEVEL READ COMMITTED"],
            (DbBackend::Postgres, Purpose::Read) => &["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"],
            // SQLite's deferred transaction fails if it reads first and another transaction writes.
            (DbBackend::Sqlite, Purpose::Write) => &["BEGIN IMMEDIATE"],
            (DbBackend::Sqlite, Purpose::Read) => &["BEGIN"],
            (_, Purpose::Write) => &["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"],
            (_, Purpose::Read) => &[
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
                "BEGIN",
            ],
        };
        for statement in statements {
            self.execute_unprepared(statement).await?;
        }
        self.in_transaction.store(true, Ordering::Relaxed);
        Ok(Transaction {
            session: self,
            is_over: false,
        })
    }

    async fn open<'a>(&self, slot: &'a mut Option<Connection>) -> Result<&'a mut Connection, DbErr> {
        let connection = match slot {
            Some(connection) => connection,
            None => {
                let acquired = tokio::select! {
                    biased;
                    acquired = acquire(&self.pool) => acquired?,
                    why = why_no_connection(&self.pool) => return Err(why),
                };
                let connection = slot.insert(acquired);
                #[cfg(feature = "mysql")]
                match connection {
                    Connection::MySql(live) => {
                        self.fit_mysql(live).await.map_err(|error| self.failed(error))?;
                    }
                    #[cfg(any(feature = "postgres", feature = "sqlite"))]
                    _ => {}
                }
                connection
            }
        };
        if self.owes_rollback.swap(false, Ordering::Relaxed) {
            let _: Result<(), sqlx::Error> =
                with!(connection, live: Driver => execute::<Driver>(live, "ROLLBACK").await);
        }
        Ok(connection)
    }

    #[cfg(feature = "mysql")]
    async fn fit_mysql(&self, live: &mut PoolConnection<sqlx::MySql>) -> Result<(), sqlx::Error> {
        let ask = async || {
            let question = question(DbBackend::MySql).unwrap_or_default();
            let row = sqlx::query(AssertSqlSafe(question))
                .fetch_one(&mut **live)
                .await?;
            let unfit = unfit(DbBackend::MySql, &QueryResult::from(row));
            Ok::<_, sqlx::Error>(unfit.is_ok_and(|unfit| unfit.is_empty()))
        };
        match *self.isolation.is_fit.get_or_try_init(ask).await? {
            true => Ok(()),
            false => execute::<sqlx::MySql>(live, FIT_MYSQL).await,
        }
    }

    /// Never completes on SQLite, because a SQLite connection cannot hang, and an in-memory
    /// database ends with its connection.
    async fn abandoned(&self, gone: oneshot::Receiver<()>) {
        if self.dialect.backend == DbBackend::Sqlite {
            std::future::pending::<()>().await;
        }
        let _ = gone.await;
        sleep(GRACE).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get_mut().take() {
            let owes = match (*self.owes_rollback.get_mut(), *self.owes_end.get_mut()) {
                (true, _) => Some("ROLLBACK"),
                (false, owes_end) => owes_end.then_some(END_OPEN),
            };
            if *self.is_abandoned.get_mut() {
                tracing::warn!("a database connection timed out and is closed");
                // Dropping the connection sends no message to the server. Sending could block.
                let () = with!(connection, live: Driver => drop::<<Driver as Database>::Connection>(live.detach()));
            } else {
                let must_close = *self.must_close.get_mut();
                let () = with!(connection, live: Driver => match Handle::try_current() {
                    Ok(runtime) if must_close => drop(runtime.spawn(timeout(RETURN_TIMEOUT, live.close()))),
                    Ok(runtime) => drop(runtime.spawn(give_back::<Driver>(live, owes))),
                    Err(_) => drop(live.detach()),
                });
            }
        }
    }
}

async fn give_back<D: Database>(mut live: PoolConnection<D>, owes: Option<&str>)
where
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    let ended = async {
        if let Some(sql) = owes {
            let _ = execute::<D>(&mut live, sql).await;
        }
    };
    if timeout(RETURN_TIMEOUT, ended).await.is_err() {
        tracing::warn!("a database connection timed out and is closed");
        drop(live.detach());
    } else if timeout(RETURN_TIMEOUT, live.return_to_pool()).await.is_err() {
        tracing::warn!("a database connection timed out and is closed");
    }
}

async fn end<T>(own: Option<Transaction<'_>>, value: T) -> Result<T, DbErr> {
    if let Some(own) = own {
        own.commit().await?;
    }
    Ok(value)
}

async fn execute<D: Database>(live: &mut PoolConnection<D>, sql: &str) -> Result<(), sqlx::Error>
where
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    (&mut **live)
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .map(drop)
}

#[derive(Debug)]
pub(super) struct Transaction<'a> {
    session: &'a Session,
    is_over: bool,
}

impl Transaction<'_> {
    pub(super) async fn commit(mut self) -> Result<(), DbErr> {
        self.session.execute_unprepared("COMMIT").await?;
        self.session.in_transaction.store(false, Ordering::Relaxed);
        self.is_over = true;
        Ok(())
    }
}

impl Deref for Transaction<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.in_transaction.store(false, Ordering::Relaxed);
            self.session.owes_rollback.store(true, Ordering::Relaxed);
        }
    }
}

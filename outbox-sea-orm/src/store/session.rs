//! Holds one connection of the pool during one call, and closes it if the call is abandoned.
//!
//! A silent connection blocks sqlx 0.9.0 for ever, and SeaORM hides the connection. Invariants: a
//! call runs in a task of its own, to its end while its caller waits, and for [`GRACE`] afterwards;
//! then the connection is closed. No connection returns to the pool inside a transaction, after its
//! server refused to write, or with unread rows. The outcome of an abandoned call is unknown.
//!
//! Each statement runs READ COMMITTED, or in a snapshot that locks nothing. On PostgreSQL, it gets a
//! transaction if the session's default is another level or `synchronous_commit` is off.

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

/// How long a call continues after its caller has gone, so that a relay that stops does not tear a call that is nearly done.
const GRACE: Duration = Duration::from_secs(1);

/// Commits a transaction that a cancelled `begin()` of the service left open on its connection
/// (sqlx 0.9.0). Without one, PostgreSQL does nothing and does not warn.
const END_OPEN: &str = "BEGIN; COMMIT";

/// How long the pool may check whether a connection still answers, before the connection is closed.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// The defaults of a pool's sessions on PostgreSQL, and whether they are as the statements need
/// them on MySQL and MariaDB. The database is asked once, by the first statement.
#[derive(Debug, Clone, Default)]
pub(super) struct Isolation {
    postgres: Arc<OnceCell<Defaults>>,
    is_fit: Arc<OnceCell<bool>>,
}

#[derive(Debug, Clone, Copy)]
struct Defaults {
    is_read_committed: bool,
    /// A commit waits for the disk: `synchronous_commit` is not `off`. Else a lease could be lost.
    is_durable: bool,
}

/// Runs a call in a task of its own, on one connection.
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
        // The call was abandoned, which only happens after this future was dropped.
        None => std::future::pending().await,
    }
}

/// The connection of a call. It is taken from the pool for the first statement.
#[derive(Debug)]
pub(super) struct Session {
    /// The database and its tables.
    pub(super) dialect: Arc<Dialect>,
    pool: DatabaseConnection,
    isolation: Isolation,
    connection: Mutex<Option<Connection>>,
    in_transaction: AtomicBool,
    /// A transaction was dropped without a commit.
    owes_rollback: AtomicBool,
    /// A statement wrote without a transaction of its own.
    owes_end: AtomicBool,
    /// The connection must not return to the pool.
    must_close: AtomicBool,
    /// The caller has gone, so the connection must be closed.
    is_abandoned: AtomicBool,
}

/// The purpose of a transaction, which decides its isolation level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It writes. After waiting for a lock it must see the row as it is now. On InnoDB, the default level would also lock gaps, and so block
    /// writers.
    Write,
    /// It reads one snapshot and locks nothing.
    Read,
}

/// Runs the same code for a connection of any driver. `$live` is the connection, `$Driver` its database.
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

/// Runs a statement, in a transaction of its own where one is needed.
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

    /// Runs one or several statements without parameters. Gives them no transaction.
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

    /// Lets the next statement write without the two round trips of a transaction. Its effect is
    /// visible to other connections at the latest when the connection returns to the pool.
    pub(super) fn owe_end(&self) {
        self.owes_end.store(true, Ordering::Relaxed);
    }

    /// Reads rows one by one, until `take` returns false. The database has sent all rows, or goes on sending: see [`Self::close`].
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

    /// Closes the connection at the end of the call, instead of returning it. For rows that nobody reads any more: the pool would read them to
    /// their end. Does nothing on SQLite, which makes no row before it is read.
    pub(super) fn close(&self) {
        if self.dialect.backend != DbBackend::Sqlite {
            self.must_close.store(true, Ordering::Relaxed);
        }
    }

    /// A transaction for one statement, if it needs one to be READ COMMITTED.
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

    /// A transaction for one statement that writes. Without a transaction, the statement would join
    /// an open transaction of a cancelled `begin()` of the service, and its effect could be lost.
    async fn write_transaction(&self) -> Result<Option<Transaction<'_>>, DbErr> {
        match self.dialect.backend {
            _ if self.in_transaction.load(Ordering::Relaxed) => Ok(None),
            DbBackend::Postgres => self.begin().await.map(Some),
            DbBackend::MySql => self.execute_unprepared("COMMIT").await.map(|()| None),
            // The driver itself rolls such a transaction back.
            _ => Ok(None),
        }
    }

    /// Only on PostgreSQL.
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

    /// Whether commits of other sessions are visible before they are on disk, as far as this
    /// session's defaults are also theirs. Only on PostgreSQL.
    pub(super) async fn shows_commits_early(&self) -> Result<bool, DbErr> {
        Ok(!self.defaults().await?.is_durable)
    }

    /// Notes what an error says about the connection.
    fn failed(&self, error: sqlx::Error) -> DbErr {
        let error = DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)));
        if refuses_to_write(&error) {
            tracing::warn!(%error, "the database server does not write (a former primary?); the connection is closed");
            self.close();
        }
        if is_transaction_in_progress(&error) || has_code(&error, &["25001", "25P02"]) {
            tracing::warn!(%error, "a cancelled `begin()` left a transaction open on its connection; the connection is closed");
            self.close();
        }
        error
    }

    /// A transaction that writes.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, DbErr> {
        self.begin_for(Purpose::Write).await
    }

    /// A transaction that reads one snapshot.
    pub(super) async fn snapshot(&self) -> Result<Transaction<'_>, DbErr> {
        self.begin_for(Purpose::Read).await
    }

    /// The isolation level is part of `BEGIN`; on MySQL it comes before it. If the call is abandoned in between, its connection is closed, so no
    /// other call inherits the level.
    async fn begin_for(&self, purpose: Purpose) -> Result<Transaction<'_>, DbErr> {
        let statements: &[&str] = match (self.dialect.backend, purpose) {
            (DbBackend::Postgres, Purpose::Write) if !self.defaults().await?.is_durable => {
                &["BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO on"]
            }
            (DbBackend::Postgres, Purpose::Write) => &["BEGIN ISOLATION LEVEL READ COMMITTED"],
            (DbBackend::Postgres, Purpose::Read) => &["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"],
            // A deferred transaction that reads before it writes fails at once if another one has written in between.
            (DbBackend::Sqlite, Purpose::Write) => &["BEGIN IMMEDIATE"],
            // Deferred transactions read a snapshot.
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
                    // The pool itself tries for 30 s, and then does not say why.
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
            // An error means that there is nothing to roll back, or that the connection is broken, which the next statement reports.
            let _: Result<(), sqlx::Error> =
                with!(connection, live: Driver => execute::<Driver>(live, "ROLLBACK").await);
        }
        Ok(connection)
    }

    /// Sets what the statements need, unless the server's defaults are so.
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

    /// Waits until the caller has gone, and then for [`GRACE`]. Never ends on SQLite: a file has no other side that could fall silent, and a
    /// database in memory ends with its connection.
    async fn abandoned(&self, gone: oneshot::Receiver<()>) {
        if self.dialect.backend == DbBackend::Sqlite {
            std::future::pending::<()>().await;
        }
        // The sender never sends; its drop is an error here.
        let _ = gone.await;
        sleep(GRACE).await;
    }
}

impl Drop for Session {
    /// The call has ended, has panicked, or was abandoned.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get_mut().take() {
            let owes = match (*self.owes_rollback.get_mut(), *self.owes_end.get_mut()) {
                (true, _) => Some("ROLLBACK"),
                (false, owes_end) => owes_end.then_some(END_OPEN),
            };
            if *self.is_abandoned.get_mut() {
                tracing::warn!("a database connection did not answer in time and is closed");
                // Closes the socket without a message to the server, which could block. The pool may open another connection.
                let () = with!(connection, live: Driver => drop::<<Driver as Database>::Connection>(live.detach()));
            } else {
                let must_close = *self.must_close.get_mut();
                let () = with!(connection, live: Driver => match Handle::try_current() {
                    // Within a time limit, because closing sends a message first. On time-out, dropping closes the socket.
                    Ok(runtime) if must_close => drop(runtime.spawn(timeout(RETURN_TIMEOUT, live.close()))),
                    Ok(runtime) => drop(runtime.spawn(give_back::<Driver>(live, owes))),
                    // The runtime has ended.
                    Err(_) => drop(live.detach()),
                });
            }
        }
    }
}

/// Returns a connection to its pool, as dropping it does, but within a time limit.
async fn give_back<D: Database>(mut live: PoolConnection<D>, owes: Option<&str>)
where
    for<'c> &'c mut D::Connection: Executor<'c, Database = D>,
{
    // An error is an answer, too: there is nothing to roll back, or the connection is broken, which the pool finds out.
    let ended = async {
        if let Some(sql) = owes {
            let _ = execute::<D>(&mut live, sql).await;
        }
    };
    if timeout(RETURN_TIMEOUT, ended).await.is_err() {
        tracing::warn!("a database connection did not answer in time and is closed");
        drop(live.detach());
    } else if timeout(RETURN_TIMEOUT, live.return_to_pool()).await.is_err() {
        tracing::warn!("a database connection did not answer in time and is closed");
    }
}

/// Ends the transaction of a statement that succeeded. After an error it was dropped, and is rolled back.
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

/// A transaction of a session. Dropped, it is rolled back.
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

//! Begins transactions for the inbox, and classifies database errors.
//!
//! Transactions use `READ COMMITTED`, because a snapshot would hide the row that made an insert
//! fail. On SQLite they take the write lock at the beginning, because a later lock upgrade fails
//! without waiting.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use sea_orm::{RuntimeErr, sqlx};

use outbox_sea_orm::{CAN_BE_LOST, DatabaseAnswer, ErrorKind, InMemory, keep_in_memory};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, IsolationLevel,
    SqliteTransactionMode, Statement, TransactionOptions, TransactionTrait,
};
use tokio::sync::{Mutex, MutexGuard};

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use crate::dedup::constraint::driver_error;
use crate::dedup::lock_limit::LockLimit;
use crate::pool::Pool;
use crate::start_error::Problem;

/// Returns the missing cargo feature of a database. Without it, driver errors have no type, and an
/// outage would look like a failing handler.
pub(crate) fn missing_feature(backend: DbBackend) -> Option<&'static str> {
    let (feature, enabled) = match backend {
        DbBackend::Postgres => ("postgres", cfg!(feature = "postgres")),
        DbBackend::MySql => ("mysql", cfg!(feature = "mysql")),
        DbBackend::Sqlite => ("sqlite", cfg!(feature = "sqlite")),
        _ => return None,
    };
    (!enabled).then_some(feature)
}

const TURN_WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct Database {
    pool: Pool,
    isolation_level: Option<IsolationLevel>,
    /// Whether PostgreSQL has `synchronous_commit = off`: a commit could be lost after its message
    /// was acknowledged.
    must_wait_for_disk: bool,
    lock_limit: LockLimit,
    turns: Option<Arc<Mutex<()>>>,
    in_memory: Arc<InMemory>,
    encoding: Option<String>,
}

impl Database {
    pub(crate) async fn inspect(pool: DatabaseConnection) -> Result<Self, DbErr> {
        let (mut lock_limit, mut encoding) = (LockLimit::default(), None);
        let mut must_wait_for_disk = false;
        let isolation_level = match pool.get_database_backend() {
            // Setting the isolation level would cost two round trips. If the server's default
            // changes while the inbox runs, a duplicate causes a serialization failure.
            DbBackend::Postgres => {
                let sql = "SELECT current_setting('default_transaction_isolation') = 'read committed' AS ok, \
                           current_setting('lock_timeout') AS lock_timeout, current_setting('server_encoding') AS encoding, \
                           current_setting('synchronous_commit') = 'off' AS is_async";
                let row = pool
                    .query_one_raw(Statement::from_string(DbBackend::Postgres, sql))
                    .await?
                    .ok_or_else(|| DbErr::RecordNotFound("the settings of the session".to_owned()))?;
                lock_limit = LockLimit::instead_of(row.try_get("", "lock_timeout")?);
                must_wait_for_disk = row.try_get("", "is_async")?;
                let is_default: bool = row.try_get("", "ok")?;
                encoding = Some(row.try_get("", "encoding")?);
                (!is_default).then_some(IsolationLevel::ReadCommitted)
            }
            DbBackend::MySql => Some(IsolationLevel::ReadCommitted),
            _ => None,
        };
        let turns = (pool.get_database_backend() == DbBackend::Sqlite).then(Arc::default);
        Ok(Self {
            in_memory: Arc::new(keep_in_memory(&pool).await?),
            pool: Pool::new(pool),
            isolation_level,
            must_wait_for_disk,
            lock_limit,
            turns,
            encoding,
        })
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn problem(&self) -> Option<Problem> {
        match &self.encoding {
            Some(encoding) if encoding != "UTF8" => Some(Problem::new(format!(
                "the database has the encoding {encoding}, which cannot store all texts of messages and errors; use a database with the encoding \
                 UTF8: `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
            ))),
            _ => matches!(*self.in_memory, InMemory::CanBeLost).then(|| Problem::new(CAN_BE_LOST)),
        }
    }

    pub(crate) fn lock_limit(&self) -> LockLimit {
        self.lock_limit.clone()
    }

    /// On SQLite, waits for earlier transactions of this process, at most [`TURN_WAIT_MAX`],
    /// because SQLite has no lock queue. Hold the guard as long as the transaction. Cancel-safe.
    pub(crate) async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        tokio::time::timeout(TURN_WAIT_MAX, self.turns.as_ref()?.lock())
            .await
            .ok()
    }

    /// **Never drop this future**: sqlx 0.9.0 would return the connection to its pool inside the
    /// open transaction. Call it only from tasks that are never aborted.
    pub(crate) async fn begin(&self) -> Result<DatabaseTransaction, DbErr> {
        let sqlite = self.pool.get_database_backend() == DbBackend::Sqlite;
        let begun = self.pool.begin_with_options(TransactionOptions {
            isolation_level: self.isolation_level,
            access_mode: None,
            sqlite_transaction_mode: sqlite.then_some(SqliteTransactionMode::Immediate),
        });
        let transaction = match begun.await {
            Err(error) if trouble(&error) == Trouble::Statement => {
                // A `begin()` cancelled by the application may have left a transaction open. In
                // this transaction, MySQL rejects `SET TRANSACTION`, and PostgreSQL rejects all
                // statements after a failed statement.
                let _ = self.pool.execute_unprepared("COMMIT").await;
                return Err(error);
            }
            begun => begun?,
        };
        if self.must_wait_for_disk {
            transaction
                .execute_unprepared("SET LOCAL synchronous_commit TO on")
                .await?;
        }
        Ok(transaction)
    }
}

const RESPONSE_MAX: Duration = Duration::from_secs(2);

impl Database {
    pub(crate) async fn responds(&self) -> bool {
        let ping = self.pool.execute_unprepared("SELECT 1");
        matches!(tokio::time::timeout(RESPONSE_MAX, ping).await, Ok(Ok(_)))
    }
}

/// Returns false if the connection was lost; the server then rolls back.
pub(crate) async fn roll_back(transaction: DatabaseTransaction) -> bool {
    let outcome = transaction.rollback().await;
    if let Err(error) = &outcome {
        tracing::debug!(%error, "rollback failed; the server rolls back when the connection ends");
    }
    outcome.is_ok()
}

pub(crate) async fn finish<T>(transaction: DatabaseTransaction, work: Result<T, DbErr>) -> Result<T, DbErr> {
    match work {
        Ok(value) => transaction.commit().await.map(|()| value),
        Err(error) => {
            roll_back(transaction).await;
            Err(error)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Conflict,
    Unavailable,
    Statement,
}

pub(crate) fn trouble_in(error: &(dyn Error + 'static)) -> Option<Trouble> {
    let mut error = Some(error);
    while let Some(current) = error {
        if let Some(error) = current.downcast_ref::<DbErr>() {
            return Some(trouble(error));
        }
        #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
        if let Some(error) = current.downcast_ref::<sqlx::Error>() {
            return Some(outbox_sea_orm::kind_of_driver(error).into());
        }
        #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
        if let Some(RuntimeErr::SqlxError(error)) = current.downcast_ref::<RuntimeErr>() {
            return Some(outbox_sea_orm::kind_of_driver(error).into());
        }
        error = current.source();
    }
    None
}

pub(crate) fn trouble(error: &DbErr) -> Trouble {
    ErrorKind::of(error).into()
}

impl From<ErrorKind> for Trouble {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Unavailable => Self::Unavailable,
            _ => Self::Statement,
        }
    }
}

pub(crate) fn timed_out(error: &DbErr) -> bool {
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    if let Some(answer) = driver_error(error).and_then(sqlx::Error::as_database_error) {
        return answer.code().is_some_and(|code| code == "57014")
            || matches!(mysql_number(&answer.to_string()), Some(1317 | 1969 | 3024));
    }
    let _ = error;
    false
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn mysql_number(text: &str) -> Option<u16> {
    text.split(' ').next()?.parse().ok()
}

pub(crate) fn is_denied(error: &DbErr) -> bool {
    matches!(DatabaseAnswer::of(error), Some(DatabaseAnswer::Denied(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    #[tokio::test]
    async fn statement_timeouts_are_classified() {
        for test in crate::tests::database::TestDb::open_all().await {
            let long = match test.db.get_database_backend() {
                DbBackend::Postgres => "SET LOCAL statement_timeout = 50; SELECT pg_sleep(60)",
                DbBackend::MySql => {
                    "SET STATEMENT max_statement_time = 0.05 FOR WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) \
                     SELECT count(*) FROM n a, n b, n c, n d"
                }
                _ => continue,
            };
            let tx = test.begin().await;
            let error = tx.execute_unprepared(long).await.unwrap_err();
            assert!(timed_out(&error), "{error}");
            roll_back(tx).await;
            let error = test.db.execute_unprepared("SELECT no_such_column").await;
            assert!(!timed_out(&error.unwrap_err()));
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn short_transaction_gets_its_turn_between_long_transactions() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

        let test = crate::tests::database::TestDb::open_all().await.remove(0);
        let database = Database::inspect(test.db.clone()).await.unwrap();
        let begun = AtomicU32::new(0);
        let over = AtomicBool::new(false);
        let long = async || {
            while !over.load(Ordering::SeqCst) {
                let _turn = database.turn().await;
                let tx = database.begin().await.unwrap();
                begun.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                roll_back(tx).await;
            }
        };
        let short = async {
            for _ in 0..5 {
                let before = begun.load(Ordering::SeqCst);
                let turn = database.turn().await;
                roll_back(database.begin().await.unwrap()).await;
                drop(turn);
                let between = begun.load(Ordering::SeqCst) - before;
                assert!(between <= 2, "{between} long transactions came first");
            }
            over.store(true, Ordering::SeqCst);
        };
        tokio::join!(long(), long(), short);
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn transactions_wait_for_disk_despite_session_setting() {
        let Some(url) = outbox_testing::backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{separator}options[synchronous_commit]=off");
        let pool = sea_orm::Database::connect(url).await.unwrap();
        let database = Database::inspect(pool).await.unwrap();
        let tx = database.begin().await.unwrap();
        let show = Statement::from_string(DbBackend::Postgres, "SHOW synchronous_commit");
        let row = tx.query_one_raw(show).await.unwrap().unwrap();
        assert_eq!(row.try_get_by_index::<String>(0).unwrap(), "on");
        roll_back(tx).await;
    }

    #[test]
    fn causes_are_searched() {
        let lost = DbErr::ConnectionAcquire(sea_orm::ConnAcquireErr::Timeout);
        let error = outbox_sea_orm::RecordError::Database(lost);
        assert_eq!(trouble_in(&error), Some(Trouble::Unavailable));
        assert_eq!(trouble_in(&std::io::Error::other("x")), None);
    }
}

//! Opens database sessions, optionally read-only.
//!
//! Invariant: opening contacts no server or file; the first query does, and receives any error.

use std::time::Duration;

use outbox::sea_orm::{ConnectError, open_lazily};
use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sea_orm::sqlx::{self, AssertSqlSafe, ConnectOptions as _, Executor as _};
use sea_orm::{ConnectOptions, DatabaseConnection, SqlxSqliteConnector};

#[derive(Debug, Clone, Copy)]
pub(super) enum Sessions {
    Reading,
    Writing,
    /// As `Writing`, and may create a SQLite file if the address allows it.
    Making,
}

pub(super) async fn open(
    address: &str,
    sessions: Sessions,
    most: u32,
    timeout: Duration,
) -> Result<DatabaseConnection, ConnectError> {
    if address.starts_with("sqlite:") {
        let opened = of_file(address, sessions, most, timeout);
        return opened.map_err(|_| ConnectError::Address);
    }
    let mut options = ConnectOptions::new(address);
    options
        .min_connections(0)
        .max_connections(most)
        .acquire_timeout(timeout)
        .sqlx_logging(false);
    if let Sessions::Reading = sessions {
        cannot_write(&mut options, timeout);
    }
    // Boxed, because nested futures reach the compiler's limit.
    Box::pin(open_lazily(options)).await
}

/// Opens SQLite lazily; SeaORM would open the file at once.
fn of_file(
    address: &str,
    sessions: Sessions,
    most: u32,
    timeout: Duration,
) -> Result<DatabaseConnection, sqlx::Error> {
    let session: SqliteConnectOptions = address.parse()?;
    let session = session
        .busy_timeout(lock_wait(timeout))
        .disable_statement_logging();
    let session = match sessions {
        Sessions::Reading => session.create_if_missing(false).pragma("query_only", "on"),
        Sessions::Writing => session.create_if_missing(false),
        Sessions::Making => session,
    };
    let pool = SqlitePoolOptions::new()
        .min_connections(0)
        .max_connections(most)
        .acquire_timeout(timeout)
        .connect_lazy_with(session);
    Ok(SqlxSqliteConnector::from_sqlx_sqlite_pool(pool))
}

/// The lock wait is shorter than the statement timeout, so the error names the lock.
fn lock_wait(timeout: Duration) -> Duration {
    // SQLite accepts at most 2^31 ms, about 24 days.
    (timeout / 5 * 4).min(Duration::from_hours(24))
}

/// Makes server sessions read-only with a statement timeout. SQLite has no statement timeout, so
/// the caller limits its wait.
fn cannot_write(options: &mut ConnectOptions, statement_max: Duration) {
    let millis = statement_max.as_millis().to_string();
    options.map_sqlx_postgres_opts(move |session| {
        session.options([
            ("default_transaction_read_only", "on"),
            ("statement_timeout", millis.as_str()),
        ])
    });
    let seconds = statement_max.as_secs_f64();
    options.map_sqlx_mysql_pool_opts(move |pool| {
        pool.after_connect(move |session, _| {
            Box::pin(async move {
                (&mut *session)
                    .execute("SET SESSION TRANSACTION READ ONLY")
                    .await?;
                // MariaDB limits statements by `max_statement_time` (seconds), MySQL by
                // `max_execution_time` (milliseconds).
                let mariadb = format!("SET SESSION max_statement_time = {seconds:.3}");
                if session.execute(AssertSqlSafe(mariadb)).await.is_err() {
                    let millis = seconds * 1000.0;
                    let mysql = format!("SET SESSION max_execution_time = {millis:.0}");
                    (&mut *session).execute(AssertSqlSafe(mysql)).await?;
                }
                Ok(())
            })
        })
    });
}

#[cfg(test)]
mod tests {
    use outbox::testing::{backend_url, eventually};
    use sea_orm::ConnectionTrait as _;

    use super::*;

    async fn session(url: &str, statement_max: Duration) -> DatabaseConnection {
        if url.starts_with("sqlite:") {
            return of_file(url, Sessions::Reading, 1, statement_max).unwrap();
        }
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).sqlx_logging(false);
        cannot_write(&mut options, statement_max);
        sea_orm::Database::connect(options).await.unwrap()
    }

    async fn check(url: &str, write: &str) {
        let db = session(url, Duration::from_secs(5)).await;
        db.execute_unprepared("SELECT 1").await.unwrap();
        let error = db.execute_unprepared(write).await.unwrap_err().to_string();
        let text = error.to_lowercase().replace(['-', ' '], "");
        assert!(text.contains("readonly"), "{error}");
    }

    #[tokio::test]
    async fn dashboard_sessions_are_read_only() {
        for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
            if let Some(url) = backend_url(variable) {
                check(&url, "CREATE SCHEMA never_made_by_a_session").await;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outbox.db");
        let url = format!("sqlite://{}?mode=rwc", file.display());
        std::fs::File::create(&file).unwrap();
        check(&url, "CREATE TABLE never_made (id INTEGER)").await;
    }

    #[tokio::test]
    async fn first_query_opens_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outbox.db");
        let url = format!("sqlite://{}?mode=rwc", file.display());
        let wait = Duration::from_secs(5);
        for sessions in [Sessions::Reading, Sessions::Writing] {
            let db = open(&url, sessions, 1, wait).await.unwrap();
            let error = db.execute_unprepared("SELECT 1").await.unwrap_err();
            assert!(error.to_string().contains("(code: 14)"), "{error}");
            assert!(!file.exists());
        }
        let db = open(&url, Sessions::Making, 1, wait).await.unwrap();
        assert!(!file.exists());
        db.execute_unprepared("CREATE TABLE made (id INTEGER)")
            .await
            .unwrap();
        assert!(file.exists());
        open("sqlite://a?mode=b", Sessions::Making, 1, wait)
            .await
            .unwrap_err();
    }

    #[tokio::test]
    async fn a_statement_of_postgres_ends_by_itself() {
        let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let db = session(&url, Duration::from_millis(100)).await;
        let error = db.execute_unprepared("SELECT pg_sleep(600)").await.unwrap_err();
        // PostgreSQL cancels a statement by a signal, and sometimes reports a user request as the
        // reason.
        assert!(
            error.to_string().contains("canceling statement due to"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_statement_of_mariadb_ends_by_itself() {
        let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") else {
            return;
        };
        let db = session(&url, Duration::from_millis(100)).await;
        let error = db.execute_unprepared("SELECT SLEEP(600)").await.unwrap_err();
        assert!(
            error.to_string().contains("max_statement_time exceeded"),
            "{error}"
        );
        eventually("an answer", async || {
            db.execute_unprepared("SELECT 1").await.is_ok()
        })
        .await;
    }
}

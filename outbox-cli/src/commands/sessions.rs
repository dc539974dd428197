//! Sessions of a database that cannot write, whatever they are asked to do, and how long sessions of SQLite wait for each other.

use std::time::Duration;

use sea_orm::ConnectOptions;
use sea_orm::sqlx::{AssertSqlSafe, Executor as _};

/// How long a session of SQLite waits for a lock that another process holds: less than the answer is waited for, so that the answer says what was in the way.
pub(super) fn lock_wait(timeout: Duration) -> Duration {
    // SQLite takes milliseconds of 31 bits, which end after 24 days.
    (timeout / 5 * 4).min(Duration::from_hours(24))
}

/// Lets each session only read, and ends each of its statements after a time. SQLite knows no such time; whoever asks stops waiting. A file of SQLite that is missing is not made.
pub(super) fn cannot_write(options: &mut ConnectOptions, statement_max: Duration) {
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
                // MariaDB knows the first one, in seconds, MySQL the second one, in milliseconds. A program that knows neither ends the wait only.
                let mariadb = format!("SET SESSION max_statement_time = {seconds:.3}");
                if session
                    .execute(sea_orm::sqlx::AssertSqlSafe(mariadb))
                    .await
                    .is_err()
                {
                    let millis = seconds * 1000.0;
                    let mysql = format!("SET SESSION max_execution_time = {millis:.0}");
                    (&mut *session).execute(AssertSqlSafe(mysql)).await?;
                }
                Ok(())
            })
        })
    });
    let wait = lock_wait(statement_max);
    options.map_sqlx_sqlite_opts(move |session| {
        let session = session.create_if_missing(false).busy_timeout(wait);
        session.pragma("query_only", "on")
    });
}

#[cfg(test)]
mod tests {
    use outbox::core::testing::backend_url;
    use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection};

    use super::*;

    async fn session(url: &str, statement_max: Duration) -> DatabaseConnection {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).sqlx_logging(false);
        cannot_write(&mut options, statement_max);
        Database::connect(options).await.unwrap()
    }

    async fn check(url: &str, write: &str) {
        let db = session(url, Duration::from_secs(5)).await;
        db.execute_unprepared("SELECT 1").await.unwrap();
        let error = db.execute_unprepared(write).await.unwrap_err().to_string();
        let text = error.to_lowercase().replace(['-', ' '], "");
        assert!(text.contains("readonly"), "{error}");
    }

    #[tokio::test]
    async fn no_session_can_write() {
        for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
            if let Some(url) = backend_url(variable) {
                check(&url, "CREATE SCHEMA never_made_by_a_session").await;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outbox.db");
        let url = format!("sqlite://{}?mode=rwc", file.display());
        // It makes none.
        std::fs::File::create(&file).unwrap();
        check(&url, "CREATE TABLE never_made (id INTEGER)").await;
    }

    #[tokio::test]
    async fn a_statement_of_postgres_ends_by_itself() {
        let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let db = session(&url, Duration::from_millis(100)).await;
        let error = db.execute_unprepared("SELECT pg_sleep(600)").await.unwrap_err();
        // The server ends it by a signal to itself, and says now and then that a user has asked for that.
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
        // The session stays, and what is quick enough is answered.
        db.execute_unprepared("SELECT 1").await.unwrap();
    }
}

//! Changes the table of messages under its lock, which blocks writers. A change is one transaction,
//! which is retried after a lock timeout.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use tokio::time::sleep;

use super::failure::{failed, sqlstate};
use super::sql::{Names, statement};
use super::{LogError, table};

/// Lock timeout, because writers queue behind the lock.
const LOCK_WAITS: &str = "2s";
const LOCK_TRIES: u32 = 30;

/// Writers in all languages omit the column `status`. So its default decides whether the log relay
/// or the table relay publishes new messages.
pub(crate) fn default_of_status(names: &Names, status: i16) -> String {
    format!(
        "ALTER TABLE {} ALTER COLUMN status SET DEFAULT {status}",
        names.messages
    )
}

/// Waits for active transactions on the table, and runs the statements under the table's lock.
pub(crate) async fn change_table(
    db: &DatabaseConnection,
    table: &str,
    changes: &[String],
) -> Result<(), LogError> {
    let mut statements = vec![format!("SET LOCAL lock_timeout = '{LOCK_WAITS}'")];
    statements.extend_from_slice(changes);
    let context = "the default of the column status could not be changed";
    for attempt in 1.. {
        let tx = table::begin(db).await.map_err(failed(context))?;
        let mut outcome = Ok(());
        for statement in &statements {
            outcome = tx.execute_unprepared(statement).await.map(drop);
            if outcome.is_err() {
                break;
            }
        }
        let outcome = match outcome {
            Ok(()) => tx.commit().await,
            Err(error) => {
                let rolled_back = tx.rollback().await;
                rolled_back.and(Err(error))
            }
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) if matches!(sqlstate(&error).as_deref(), Some("55P03" | "40P01")) => {
                if attempt == LOCK_TRIES {
                    let holders = holders(db, table).await;
                    let holders = holders.unwrap_or_else(|| "none any more".to_owned());
                    return Err(failed(context)(DbErr::Custom(format!(
                        "{error}. The lock of {table} was not free in {LOCK_TRIES} attempts of {LOCK_WAITS}. The table is used by {holders}. End these sessions and call again"
                    ))));
                }
                sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(failed(context)(error)),
        }
    }
    Ok(())
}

async fn holders(db: &DatabaseConnection, name: &str) -> Option<String> {
    let sql = "SELECT string_agg(DISTINCT CASE WHEN a.pid IS NULL THEN 'a prepared transaction of pg_prepared_xacts' \
               ELSE pg_catalog.format('pid %s of %s since %s', a.pid, a.usename, a.xact_start) END, ', ') AS value \
               FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
               WHERE (l.relation = to_regclass($1)::oid OR l.relation IN (SELECT relid::oid FROM pg_partition_tree(to_regclass($1)))) \
               AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
               AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()";
    let holders: Result<Option<String>, _> = table::value(db, statement(sql, [name.into()])).await;
    holders.ok().flatten()
}

#[cfg(test)]
mod tests {
    use outbox_testing::backend_url;
    use sea_orm::{Database, TransactionTrait as _};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn error_names_the_transaction_that_locks_the_table() {
        let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let db = Database::connect(url).await.unwrap();
        let table = format!("held_{}", Uuid::now_v7().simple());
        db.execute_unprepared(&format!("CREATE TABLE {table} ()"))
            .await
            .unwrap();
        assert_eq!(holders(&db, &table).await, None);
        let reader = db.begin().await.unwrap();
        reader
            .execute_unprepared(&format!("SELECT FROM {table}"))
            .await
            .unwrap();
        let held = holders(&db, &table).await.unwrap();
        assert!(held.starts_with("pid ") && held.contains(" since "), "{held}");
        reader.rollback().await.unwrap();
        db.execute_unprepared(&format!("DROP TABLE {table}"))
            .await
            .unwrap();
    }
}

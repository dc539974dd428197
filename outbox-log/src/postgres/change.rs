//! Changes the table of messages under its lock, which blocks writers. A change is one transaction,
//! which is retried after a lock timeout.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use tokio::time::sleep;

use super::failure::{failed, sqlstate};
use super::slot::open_transactions;
use super::sql::Names;
use super::{LogError, table};

/// Lock timeout, because writers queue behind the lock.
const LOCK_WAITS: &str = "2s";
const LOCK_TRIES: u32 = 30;

/// Writers in all languages omit the column `status`, so the default decides whether new messages
/// are logged or pending.
pub(crate) fn default_of_status(names: &Names, status: i16) -> String {
    format!(
        "ALTER TABLE {} ALTER COLUMN status SET DEFAULT {status}",
        names.messages
    )
}

/// Runs the statements under the table's lock, after active transactions on the table.
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
                    let open = open_transactions(db).await;
                    return Err(failed(context)(DbErr::Custom(format!(
                        "{error}. The lock of {table} was not free in {LOCK_TRIES} attempts of {LOCK_WAITS}. End open transactions and call again: {open}"
                    ))));
                }
                sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(failed(context)(error)),
        }
    }
    Ok(())
}

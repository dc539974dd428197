//! The four consumers, each with a database of its own.
//!
//! Three of them write their effects through the handler's transaction, so the inbox alone makes each effect happen once. `notifications` has its
//! effect outside the database and gives the receiver a stable key.

mod billing;
mod inventory;
mod notifications;
mod shipping;

use std::time::Duration;

use outbox_core::Subscriber;
use outbox_inbox::{HandlerError, Inbox, InboxConfig, Metadata, Tx};
use sea_orm::{ConnectionTrait as _, DbBackend, Value};
use tokio_util::sync::CancellationToken;

use crate::database::{CONNECTIONS, connect, statement};
use crate::failure::{Doing, Failure};
use crate::notices::NoticeFile;
use crate::setup::{Part, Setup};

/// Runs the consumer of a part until `shutdown`.
pub(crate) async fn run<S: Subscriber>(
    setup: &Setup,
    part: Part,
    subscriber: S,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let db = connect(setup.database, setup.url(part), CONNECTIONS).await?;
    // The messages of a killed consumer are delivered again after `ack_wait`. The default would make a demo wait for half a minute.
    let config = InboxConfig::default()
        .ack_wait(Duration::from_secs(5))
        .handler_timeout(Duration::from_secs(4));
    Inbox::new(db, subscriber)
        .with_config(config)
        .with_state(NoticeFile::new(setup.notices()))
        .with_consumers([part.name()])
        .run(shutdown)
        .await
        .or_cannot(format_args!("run consumer {}", part.name()))?;
    Ok(())
}

/// Records that a message took effect. The table deliberately has no unique key: the ledger counts the rows.
async fn note_effect(tx: &Tx<'_>, message: &Metadata) -> Result<(), HandlerError> {
    let sql = "INSERT INTO effects (message_id) VALUES (?)";
    let id = message.message_id().to_string();
    tx.execute_raw(statement(tx.get_database_backend(), sql, [id.into()]))
        .await?;
    Ok(())
}

/// A table of sums by key.
struct Sum {
    table: &'static str,
    key: &'static str,
    number: &'static str,
}

impl Sum {
    /// Adds to the sum of a key. Two handlers that update one row wait for each other. A handler updates rows in the order of their keys, so handlers
    /// cannot deadlock.
    async fn add(&self, tx: &Tx<'_>, key: impl Into<Value>, number: i64) -> Result<(), HandlerError> {
        let Self {
            table,
            key: key_column,
            number: column,
        } = self;
        let backend = tx.get_database_backend();
        let on_conflict = match backend {
            DbBackend::MySql => "ON DUPLICATE KEY UPDATE".to_owned(),
            _ => format!("ON CONFLICT ({key_column}) DO UPDATE SET"),
        };
        let sql = format!(
            "INSERT INTO {table} ({key_column}, {column}) VALUES (?, ?) {on_conflict} {column} = {table}.{column} + ?"
        );
        tx.execute_raw(statement(
            backend,
            &sql,
            [key.into(), number.into(), number.into()],
        ))
        .await?;
        Ok(())
    }
}

//! Records events without a model.

use outbox_core::{Events, IntoEvents, MessageId};
use sea_orm::ConnectionTrait;

use crate::config::OutboxConfig;
use crate::error::RecordError;
use crate::names::usage;
use crate::write::insert::insert;
use crate::write::integrity::watch::Watched;
use crate::write::transaction::Transactional;
use crate::write::turn::Turn;

/// Records events in an open transaction. The events exist if and only if the transaction commits.
///
/// SeaORM's transaction uses the default tables; the next poll finds the messages (default: within
/// 1 s). If the process uses only other table names, the result is [`RecordError::DefaultNames`]. A
/// transaction from [`OutboxConnection::begin`](crate::OutboxConnection::begin) uses the
/// connection's configuration, and its commit wakes the relays of this process.
///
/// Checks all events before any write. Returns message ids in order. The head rows of the
/// aggregates stay locked until the transaction ends: record late, commit soon.
///
/// Transactions that record for the same aggregates in different orders can deadlock (on MariaDB
/// also the first writers of one aggregate). Large calls with the same deduplication keys in
/// different orders can deadlock too. The error's kind is then
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), and no event of the call is stored. Above
/// READ COMMITTED, PostgreSQL can report a serialization failure.
/// [`OutboxConnection::transaction`](crate::OutboxConnection::transaction) repeats the transaction.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use sea_orm::TransactionTrait;
///
/// let tx = db.begin().await?;
/// // … change something through `&tx` …
/// outbox_sea_orm::record(&tx, [OrderPlaced { order_id: 7 }]).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`RecordError`]. Roll back the transaction, or the nested transaction. A transaction from
/// [`OutboxConnection::begin`](crate::OutboxConnection::begin) or of a handler rejects the commit;
/// SeaORM's commit would store the change without its events.
///
/// [`RecordError::TransactionLost`] if MySQL, MariaDB or SQLite has rolled back everything. For
/// SeaORM's transaction on MySQL and MariaDB, this check costs a round trip.
///
/// # Cancellation
///
/// If the future is dropped, drop the transaction too. The commit is rejected as after an error.
pub async fn record(tx: &impl Transactional, events: impl IntoEvents) -> Result<Vec<MessageId>, RecordError> {
    let events = events.into_events();
    let turn = Turn::take(tx).await.map_err(RecordError::TransactionLost)?;
    let recorded = record_events(
        &Watched::new(tx.transaction(), turn.integrity()),
        tx.config(),
        events,
    )
    .await;
    match &recorded {
        // If recording fails, the transaction must not commit the change without its events.
        Err(_) => turn.fails(),
        Ok(_) => turn.ends(),
    }
    recorded
}

pub(crate) async fn record_events<C: ConnectionTrait>(
    tx: &C,
    config: &OutboxConfig,
    events: Events,
) -> Result<Vec<MessageId>, RecordError> {
    let messages = events.checked(&config.limits)?;
    if config.names.is_default()
        && !messages.is_empty()
        && let Some(names) = usage::other_than_default()
    {
        return Err(RecordError::DefaultNames {
            in_use: names.messages(tx.get_database_backend()),
        });
    }
    let ids = messages.iter().map(|message| message.id()).collect();
    insert(tx, &config.names, messages).await?;
    Ok(ids)
}

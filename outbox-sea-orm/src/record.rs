//! Records events inside a transaction, without a model.

use outbox_core::{Events, IntoEvents, MessageId};
use sea_orm::ConnectionTrait;

use crate::config::OutboxConfig;
use crate::error::RecordError;
use crate::insert::insert;
use crate::transaction::Transactional;

/// Records events in an open transaction: they exist if and only if it commits.
///
/// A transaction that SeaORM began records under the default names, and its messages are found by the next poll (within 1 s by
/// default). [`OutboxConnection::begin`](crate::OutboxConnection::begin) carries other names and wakes the relays when it commits.
///
/// All events are checked before anything is written. Returns the ids of the messages, in the order of the events. Thousands of
/// events per call are written in few statements. The transaction holds the row locks of the aggregates' head rows until
/// it ends, which is what keeps their messages in commit order; so record late and commit soon.
///
/// Like any write it may lose against a concurrent one: a deadlock between transactions that touch several aggregates in different
/// orders (on MariaDB also between first writers of one aggregate), or a serialization failure above READ COMMITTED on PostgreSQL.
/// Repeat the whole transaction then.
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
/// [`RecordError`]; then roll the transaction back. On PostgreSQL the server insists after a database error, on the others the
/// change would otherwise be committed without its events.
///
/// # Cancellation
///
/// Dropping the future leaves the transaction undecided; drop it too, which rolls it back.
pub async fn record(tx: &impl Transactional, events: impl IntoEvents) -> Result<Vec<MessageId>, RecordError> {
    record_events(tx.transaction(), tx.config(), events.into_events()).await
}

pub(crate) async fn record_events<C: ConnectionTrait>(
    tx: &C,
    config: &OutboxConfig,
    events: Events,
) -> Result<Vec<MessageId>, RecordError> {
    let messages = events.checked(&config.limits)?;
    let ids = messages.iter().map(|message| message.id()).collect();
    insert(tx, &config.names, messages).await?;
    Ok(ids)
}

//! Records events inside a transaction, without a model.

use outbox_core::{Events, IntoEvents, MessageId};
use sea_orm::ConnectionTrait;

use crate::config::OutboxConfig;
use crate::error::RecordError;
use crate::names::usage;
use crate::write::insert::insert;
use crate::write::integrity::watch::Watched;
use crate::write::transaction::Transactional;
use crate::write::turn::Turn;

/// Records events in an open transaction: they exist if and only if it commits.
///
/// A transaction that SeaORM began records into the default tables, and the relay finds its messages with the next poll (within 1 s by
/// default). A transaction from [`OutboxConnection::begin`](crate::OutboxConnection::begin) records into the tables of its configuration,
/// and wakes the relays of this process when it commits. In a process that only uses other tables than the default ones, SeaORM's own
/// transactions are refused ([`RecordError::DefaultNames`]).
///
/// All events are checked before anything is written. Returns the ids of the messages, in the order of the events. Thousands of events
/// per call take a few statements. The transaction locks the head rows of the aggregates until it ends, which keeps their messages in
/// commit order; so record late and commit soon.
///
/// Like any write, it may lose against a concurrent one. Transactions that touch several aggregates in different orders can deadlock (on
/// MariaDB also the first writers of one aggregate), and above READ COMMITTED PostgreSQL can report a serialization failure. Repeat the
/// whole transaction then, as [`OutboxConnection::transaction`](crate::OutboxConnection::transaction) does.
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
/// [`RecordError`]. After any error, roll back the transaction, or the nested transaction of the call.
///
/// A transaction from [`OutboxConnection::begin`](crate::OutboxConnection::begin) and a handler's
/// transaction refuse their commit after an error, so no change is stored without its events.
/// SeaORM's own transaction does not: if the caller ignores the error, the commit stores the change
/// without its events.
///
/// [`RecordError::TransactionLost`] if MySQL, MariaDB or SQLite has undone the whole transaction because
/// of an earlier error. For SeaORM's own transaction on MySQL and MariaDB, this check is a round trip.
///
/// # Cancellation
///
/// If the future is dropped before it is ready, the transaction is undecided: drop it too, which rolls it back. Those that refuse a commit after
/// an error refuse it then as well.
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
        // The change must not be committed without its events, nor numbers without messages.
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

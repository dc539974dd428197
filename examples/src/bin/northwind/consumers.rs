//! The four consumers, each with its own database.
//!
//! Three consumers write through the handler's transaction, so each effect happens once. The effect
//! of `notifications` is outside the database and carries a stable key.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_core::Subscriber;
use outbox_inbox::{
    Event, HandlerError, HandlerState, Inbox, InboxConfig, Metadata, Outbox, StableKey, Tx,
    idempotent_handler,
};
use sea_orm::sea_query::{Expr, ExprTrait as _, InsertStatement, OnConflict, Query};
use sea_orm::{ConnectionTrait as _, Value};
use tokio_util::sync::CancellationToken;

use crate::database::{CONNECTIONS, connect};
use crate::events::{OrderPlaced, OrderShipped, ShipmentDispatched};
use crate::notices::NoticeFile;
use crate::order::Line;
use crate::setup::{Part, Setup};

pub(crate) async fn run<S: Subscriber>(
    setup: &Setup,
    part: Part,
    subscriber: S,
    shutdown: CancellationToken,
) -> Result<()> {
    let db = connect(&setup.urls[&part], CONNECTIONS).await?;
    // The messages of a killed consumer are redelivered after `ack_wait`. The default would delay
    // the demo by half a minute.
    let config = InboxConfig::default()
        .ack_wait(Duration::from_secs(5))
        .handler_timeout(Duration::from_secs(4));
    Inbox::new(db, subscriber)
        .with_config(config)
        .with_state(NoticeFile(setup.notices()))
        .with_consumers([part.name()])
        .run(shutdown)
        .await
        .with_context(|| format!("cannot run consumer {}", part.name()))?;
    Ok(())
}

#[idempotent_handler(consumer = "inventory")]
async fn count_units(event: Event<OrderPlaced>, message: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let mut units = BTreeMap::new();
    for line in &event.lines {
        *units.entry(line.product_id).or_insert(0) += i64::from(line.quantity);
    }
    // All handlers update rows in the order of their keys, so handlers cannot deadlock.
    for (product_id, units) in units {
        add(&tx, ["stock", "product_id", "units"], product_id.into(), units).await?;
    }
    note_effect(&tx, &message).await
}

#[idempotent_handler(consumer = "billing")]
async fn charge_customer(
    event: Event<OrderPlaced>,
    message: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    let amount_cents = event.lines.iter().map(Line::amount_cents).sum();
    let account = ["accounts", "customer_id", "amount_cents"];
    add(&tx, account, event.customer_id.as_str().into(), amount_cents).await?;
    note_effect(&tx, &message).await
}

#[idempotent_handler(consumer = "shipping")]
async fn dispatch_shipment(
    event: Event<OrderShipped>,
    message: Metadata,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
) -> Result<(), HandlerError> {
    let (order_id, shipped_date) = (event.order_id, event.shipped_date);
    let shipment = [order_id.into(), shipped_date.to_string().into()];
    tx.execute(&insert("shipments", ["order_id", "shipped_date"], shipment)?)
        .await?;
    let dispatched = ShipmentDispatched {
        order_id,
        shipped_date,
    };
    outbox.record([dispatched]).await?;
    note_effect(&tx, &message).await
}

/// Sends a mail at least once, because the transaction cannot undo a mail. With the stable key
/// the receiver drops copies.
#[idempotent_handler(consumer = "notifications")]
async fn send_notice(
    event: Event<ShipmentDispatched>,
    key: StableKey,
    file: HandlerState<NoticeFile>,
) -> Result<(), HandlerError> {
    let text = format!("{} {}", event.order_id, event.shipped_date);
    file.deliver(key.as_uuid(), text).await?;
    Ok(())
}

/// Records an effect. The table has no unique key, so that the ledger can count double effects.
async fn note_effect(tx: &Tx<'_>, message: &Metadata) -> Result<(), HandlerError> {
    let id = message.message_id().to_string().into();
    tx.execute(&insert("effects", ["message_id"], [id])?).await?;
    Ok(())
}

async fn add(tx: &Tx<'_>, names: [&'static str; 3], key: Value, number: i64) -> Result<(), HandlerError> {
    let [table, key_column, sum] = names;
    let mut add = OnConflict::column(key_column);
    add.value(sum, Expr::col((table, sum)).add(number));
    let mut insert = insert(table, [key_column, sum], [key.into(), number.into()])?;
    tx.execute(insert.on_conflict(add)).await?;
    Ok(())
}

fn insert<const N: usize>(
    table: &'static str,
    columns: [&'static str; N],
    values: [Expr; N],
) -> Result<InsertStatement, HandlerError> {
    let mut insert = Query::insert();
    insert.into_table(table).columns(columns).values(values)?;
    Ok(insert)
}

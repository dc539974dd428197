//! The order service: saves each order with its events, and updates the shipped ones.
//!
//! Invariant: the service may be killed and restarted at any time. The orders table alone shows
//! where to continue.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SaveError, SaveWithEvents as _};
use sea_orm::{EntityTrait as _, NotSet, Set};
use tokio_util::sync::CancellationToken;

use crate::database::{CONNECTIONS, connect};
use crate::events::{OrderPlaced, OrderShipped};
use crate::order::Order;
use crate::setup::{Part, Setup};
use crate::tables::orders;

const CONCURRENCY: usize = 8;

pub(crate) async fn run(setup: &Setup, shutdown: CancellationToken) -> Result<()> {
    let db = connect(&setup.urls[&Part::Service], CONNECTIONS).await?;
    let saved = orders::Entity::find()
        .all(&db)
        .await
        .context("cannot read the saved orders")?;
    let book = setup.source.read()?;
    let mut saved: HashMap<i64, orders::Model> =
        saved.into_iter().map(|order| (order.order_id, order)).collect();

    let outbox = OutboxConnection::new(db, OutboxConfig::default());
    let saves = book.into_iter().map(|order| {
        let before = saved.remove(&order.order_id);
        save(outbox.clone(), order, before)
    });
    let mut saves = stream::iter(saves).buffer_unordered(CONCURRENCY);
    while let Some(result) = shutdown.run_until_cancelled(saves.next()).await {
        let Some(result) = result else {
            return Ok(());
        };
        result?;
    }
    bail!("the service was stopped before all orders were saved")
}

/// Saves an order. After a deadlock, the transaction is repeated. After a commit with unknown
/// outcome, the next start of the service checks the table `orders`.
async fn save(db: OutboxConnection, order: Order, before: Option<orders::Model>) -> Result<()> {
    let order_id = order.order_id;
    if before.is_none() {
        let inserted: Result<_, SaveError> = db
            .transaction(async |tx| {
                let placed = OrderPlaced::from(&order);
                let row = orders::ActiveModel {
                    order_id: Set(order_id),
                    customer_id: Set(order.customer_id.clone()),
                    order_date: Set(order.order_date),
                    shipped_date: NotSet,
                };
                row.insert_with_events(&tx, |_| [placed]).await
            })
            .await;
        inserted.with_context(|| format!("cannot save order {order_id}"))?;
    }
    if let Some(shipped_date) = order.shipped_date
        && before.is_none_or(|before| before.shipped_date.is_none())
    {
        let shipped: Result<_, SaveError> = db
            .transaction(async |tx| {
                let shipped = OrderShipped {
                    order_id,
                    shipped_date,
                };
                let row = orders::ActiveModel {
                    order_id: Set(order_id),
                    shipped_date: Set(Some(shipped_date)),
                    ..Default::default()
                };
                row.update_with_events(&tx, |_| [shipped]).await
            })
            .await;
        shipped.with_context(|| format!("cannot ship order {order_id}"))?;
    }
    Ok(())
}

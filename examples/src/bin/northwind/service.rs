//! The order service: saves each order with its events, and updates the shipped ones.
//!
//! Invariant: the service may be killed at any time and restarted. Each order is saved together
//! with its event, so the orders table alone shows where to continue.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use outbox_sea_orm::{SaveError, SaveWithEvents as _};
use sea_orm::{DatabaseConnection, EntityTrait as _, NotSet, Set};
use time::Date;
use tokio_util::sync::CancellationToken;

use crate::database::{CONNECTIONS, connect};
use crate::events::{OrderPlaced, OrderShipped};
use crate::order::Order;
use crate::setup::{Part, Setup};
use crate::tables::orders;

const CONCURRENCY: usize = 8;

/// Attempts to save after a temporary database error, such as a deadlock.
const TRIES: u32 = 6;

pub(crate) async fn run(setup: &Setup, shutdown: CancellationToken) -> Result<()> {
    let db = connect(&setup.urls[&Part::Service], CONNECTIONS).await?;
    let saved = orders::Entity::find()
        .all(&db)
        .await
        .context("cannot read the saved orders")?;
    let book = setup.source.read()?;
    let mut saved: HashMap<i64, orders::Model> =
        saved.into_iter().map(|order| (order.order_id, order)).collect();

    let saves = book.into_iter().map(|order| {
        let before = saved.remove(&order.order_id);
        save(db.clone(), order, before)
    });
    let mut saves = stream::iter(saves).buffer_unordered(CONCURRENCY);
    while let Some(result) = shutdown.run_until_cancelled(saves.next()).await {
        let Some(result) = result else {
            return Ok(());
        };
        result?;
    }
    // Saves in progress end in their own tasks, or are rolled back with the process.
    bail!("the service was stopped before all orders were saved")
}

async fn save(db: DatabaseConnection, order: Order, before: Option<orders::Model>) -> Result<()> {
    if before.is_none() {
        retrying(|| insert(&db, &order))
            .await
            .with_context(|| format!("cannot save order {}", order.order_id))?;
    }
    if let Some(day) = order.shipped_date
        && before.is_none_or(|before| before.shipped_date.is_none())
    {
        retrying(|| ship(&db, order.order_id, day))
            .await
            .with_context(|| format!("cannot ship order {}", order.order_id))?;
    }
    Ok(())
}

async fn insert(db: &DatabaseConnection, order: &Order) -> Result<orders::Model, SaveError> {
    let placed = OrderPlaced::from(order);
    orders::ActiveModel {
        order_id: Set(order.order_id),
        customer_id: Set(order.customer_id.clone()),
        order_date: Set(order.order_date),
        shipped_date: NotSet,
    }
    .insert_with_events(db, |_| [placed])
    .await
}

async fn ship(db: &DatabaseConnection, order_id: i64, day: Date) -> Result<orders::Model, SaveError> {
    let shipped = OrderShipped {
        order_id,
        shipped_date: day,
    };
    orders::ActiveModel {
        order_id: Set(order_id),
        shipped_date: Set(Some(day)),
        ..Default::default()
    }
    .update_with_events(db, |_| [shipped])
    .await
}

/// Repeats a save that has certainly stored nothing. After a commit with unknown outcome only the
/// table shows the outcome, and the next start reads it.
async fn retrying<T, F>(save: impl Fn() -> F) -> Result<T, SaveError>
where
    F: Future<Output = Result<T, SaveError>>,
{
    let mut tries = 1;
    loop {
        match save().await {
            Err(error) if error.is_retryable() && tries < TRIES => {
                tracing::warn!("try {tries} failed: {}", outbox_core::describe(&error));
                tokio::time::sleep(Duration::from_millis(20 << tries)).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

//! Counts the units that leave the stock, per product.

use std::collections::BTreeMap;

use outbox_inbox::{Event, HandlerError, Metadata, Tx, idempotent_handler};

use super::{Sum, note_effect};
use crate::events::OrderPlaced;

const STOCK: Sum = Sum {
    table: "stock",
    key: "product_id",
    number: "units",
};

#[idempotent_handler(consumer = "inventory")]
async fn count_units(event: Event<OrderPlaced>, message: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let mut units = BTreeMap::new();
    for line in &event.lines {
        *units.entry(line.product_id).or_insert(0) += line.quantity;
    }
    for (product_id, units) in units {
        STOCK.add(&tx, product_id, units).await?;
    }
    note_effect(&tx, &message).await
}

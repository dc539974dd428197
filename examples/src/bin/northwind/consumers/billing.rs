//! Adds up the amount that each customer owes.

use outbox_inbox::{Event, HandlerError, Metadata, Tx, idempotent_handler};

use super::{Sum, note_effect};
use crate::events::OrderPlaced;
use crate::order::Line;

const ACCOUNTS: Sum = Sum {
    table: "accounts",
    key: "customer_id",
    number: "amount_cents",
};

#[idempotent_handler(consumer = "billing")]
async fn charge_customer(
    event: Event<OrderPlaced>,
    message: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    let amount_cents = event.lines.iter().map(Line::amount_cents).sum();
    ACCOUNTS
        .add(&tx, event.customer_id.as_str(), amount_cents)
        .await?;
    note_effect(&tx, &message).await
}

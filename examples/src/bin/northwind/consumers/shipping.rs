//! Stores shipments, and records a follow-up event in the handler's own transaction: the carrier took the shipment over.

use outbox_inbox::{Event, HandlerError, Metadata, Outbox, Tx, idempotent_handler};
use sea_orm::ConnectionTrait as _;

use super::note_effect;
use crate::database::statement;
use crate::events::{OrderShipped, ShipmentDispatched};

#[idempotent_handler(consumer = "shipping")]
async fn dispatch_shipment(
    event: Event<OrderShipped>,
    message: Metadata,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
) -> Result<(), HandlerError> {
    let OrderShipped {
        order_id,
        shipped_date,
    } = *event;
    let sql = "INSERT INTO shipments (order_id, shipped_date) VALUES (?, ?)";
    let values = [order_id.into(), shipped_date.to_string().into()];
    tx.execute_raw(statement(tx.get_database_backend(), sql, values))
        .await?;
    outbox
        .record([ShipmentDispatched {
            order_id,
            shipped_date,
        }])
        .await?;
    note_effect(&tx, &message).await
}

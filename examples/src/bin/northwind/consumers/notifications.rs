//! Notifies the customer: an effect outside the database.
//!
//! The transaction cannot undo a notice, so it is sent at least once. The stable key lets the receiver drop the copies.

use outbox_inbox::{Event, HandlerError, HandlerState, StableKey, idempotent_handler};

use crate::events::ShipmentDispatched;
use crate::notices::{Notice, NoticeFile};

#[idempotent_handler(consumer = "notifications")]
async fn send_notice(
    event: Event<ShipmentDispatched>,
    key: StableKey,
    file: HandlerState<NoticeFile>,
) -> Result<(), HandlerError> {
    let ShipmentDispatched {
        order_id,
        shipped_date,
    } = *event;
    file.deliver(Notice {
        key: key.as_uuid(),
        order_id,
        shipped_date,
    })
    .await?;
    Ok(())
}

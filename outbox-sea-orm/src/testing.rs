//! Reads recorded messages in tests (feature `testing`). Not for production: each call reads the
//! whole outbox.

use outbox_core::payload::{self, Decode, EventCodec};
use outbox_core::{Message, StoreError};
use sea_orm::DatabaseConnection;

use crate::names::TableNames;

/// All messages of the default tables, published ones included, in recording order.
///
/// # Errors
///
/// The database's error, or [`StoreError::Corrupt`] for a damaged row.
pub async fn recorded(db: &DatabaseConnection) -> Result<Vec<Message>, StoreError> {
    recorded_in(db, &TableNames::default()).await
}

/// As [`recorded`], from tables with other names.
///
/// # Errors
///
/// As [`recorded`].
pub async fn recorded_in(db: &DatabaseConnection, names: &TableNames) -> Result<Vec<Message>, StoreError> {
    crate::store::recorded(db, names).await
}

/// The decoded events of one type, in recording order.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # #[derive(Debug, PartialEq, DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # async fn test(db: sea_orm::DatabaseConnection) -> Result<(), outbox_core::StoreError> {
/// let placed = outbox_sea_orm::testing::recorded_events::<OrderPlaced>(&db).await?;
/// assert_eq!(placed, [OrderPlaced { order_id: 7 }]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`recorded`], and [`StoreError::Corrupt`] if a payload does not decode as the event type.
pub async fn recorded_events<E: EventCodec>(db: &DatabaseConnection) -> Result<Vec<E>, StoreError>
where
    E::Codec: Decode<E>,
{
    recorded_events_in(db, &TableNames::default()).await
}

/// As [`recorded_events`], from tables with other names.
///
/// # Errors
///
/// As [`recorded_events`].
pub async fn recorded_events_in<E: EventCodec>(
    db: &DatabaseConnection,
    names: &TableNames,
) -> Result<Vec<E>, StoreError>
where
    E::Codec: Decode<E>,
{
    let is_wanted = |message: &Message| {
        E::DESCRIPTORS.iter().any(|wanted| {
            wanted.event_type() == message.event_type && wanted.version == message.event_version
        })
    };
    let messages = recorded_in(db, names).await?;
    messages
        .iter()
        .filter(|message| is_wanted(message))
        .map(|message| {
            payload::decode(message).map_err(|error| StoreError::Corrupt {
                context: format!("message {}: {error}", message.id),
            })
        })
        .collect()
}

//! `cargo run -p examples --example 22_formats_and_audit`
//!
//! Payloads that are not JSON, and a consumer that stores messages without decoding them. No server
//! is needed.

use outbox::core::Message;
use outbox::core::payload::{Codec, CodecError, Decode, Encode};
use outbox::inbox::RawMessage;
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{Set, TransactionTrait as _};
use serde::Serialize;

mod kept {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "kept")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub event_id: Uuid,
        pub event_type: String,
        pub content_type: String,
        pub payload: Vec<u8>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "camera", name = "took-picture", codec = Png)]
struct PictureTaken {
    #[domain_event(aggregate_id)]
    camera: String,
    png: Vec<u8>,
}

struct Png;

impl Codec for Png {
    const CONTENT_TYPE: &'static str = "image/png";
}

impl Encode<PictureTaken> for Png {
    fn encode(event: &PictureTaken) -> Result<Vec<u8>, CodecError> {
        Ok(event.png.clone())
    }
}

impl Decode<PictureTaken> for Png {
    fn decode(message: &Message) -> Result<PictureTaken, CodecError> {
        Ok(PictureTaken {
            camera: message.aggregate.id.clone(),
            png: message.payload.to_vec(),
        })
    }
}

#[idempotent_handler(consumer = "gallery")]
async fn show(event: Event<PictureTaken>) -> Result<(), HandlerError> {
    println!("gallery: {} bytes from {}", event.png.len(), event.camera);
    Ok(())
}

/// Stores every message once, independent of other consumers.
#[idempotent_handler(consumer = "audit", messages = ["*"])]
async fn keep(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    let row = kept::ActiveModel {
        event_id: Set(message.event_id.as_uuid()),
        event_type: Set(message.event_type.clone()),
        content_type: Set(message.content_type.clone()),
        payload: Set(message.payload.to_vec()),
    };
    kept::Entity::insert(row).exec_without_returning(&tx).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder().register(kept::Entity).apply(&db).await?;

    let tx = db.begin().await?;
    let picture = PictureTaken {
        camera: "door".to_owned(),
        png: vec![0x89, b'P', b'N', b'G'],
    };
    record(&tx, [picture]).await?;
    tx.commit().await?;

    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;
    broker.duplicate_deliveries(usize::MAX);
    Inbox::new(db.clone(), broker.subscriber()).drain().await?;

    for row in kept::Entity::find().all(&db).await? {
        println!(
            "audit: {} as {}, {} bytes",
            row.event_type,
            row.content_type,
            row.payload.len()
        );
    }
    Ok(())
}

//! Two types for one event, or two handlers of it in one consumer, compile, because neither knows
//! of the other. The program's inbox does not start, and names both places.

#![allow(missing_docs, missing_debug_implementations, clippy::unwrap_used)]

use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, Inbox, InboxError, Router, StateMap, idempotent_handler};
use outbox_testing::MemoryBroker;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
pub struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod copied {
    use super::*;

    #[derive(DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    pub struct Placed(#[domain_event(aggregate_id)] u64);
}

#[idempotent_handler(consumer = "stock")]
async fn reserve(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

#[idempotent_handler(consumer = "stock")]
async fn reserve_again(_event: Event<copied::Placed>) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let db = sea_orm::Database::connect("sqlite::memory:").await.unwrap();
    let inbox = Inbox::new(db, MemoryBroker::new().subscriber());
    let error = inbox.run(CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, InboxError::Catalogue(_)), "{error:?}");
    places(&error.to_string(), [14, 24]);

    let error = Router::registered().check(&StateMap::new()).unwrap_err();
    places(&error.to_string(), [28, 33]);
}

fn places(text: &str, lines: [u32; 2]) {
    for line in lines {
        assert!(text.contains(&format!("({}:{line})", file!())), "{text}");
    }
}

//! Two types for one event compile, because neither knows of the other. The program's relay does
//! not start, and names both places.

#![allow(missing_docs, missing_debug_implementations, clippy::unwrap_used)]

use std::error::Error as _;

use outbox_core::{DomainEvent, Relay, RelayError};
use outbox_testing::{MemoryBroker, MemoryStore};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

const ORDER_PLACED: u32 = line!() + 3;
#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
pub struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod copied {
    use super::*;

    pub(super) const PLACED: u32 = line!() + 3;
    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    pub struct Placed(#[domain_event(aggregate_id)] u64);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let relay = Relay::new(MemoryStore::new(), MemoryBroker::new().publisher());
    let error = relay.run(CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, RelayError::Catalogue(_)), "{error:?}");
    assert!(error.source().is_none(), "nothing is said twice");
    let text = error.to_string();
    for part in [
        "`order.placed` version 1",
        "::OrderPlaced (",
        "::copied::Placed (",
    ] {
        assert!(text.contains(part), "{text}");
    }
    for line in [ORDER_PLACED, copied::PLACED] {
        assert!(text.contains(&format!("({}:{line})", file!())), "{text}");
    }
}

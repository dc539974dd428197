//! Stored results: the value that a handler returns, and the value that a duplicate gets.

use std::sync::{Arc, Mutex};

use outbox_core::{DomainEvent, MessageId, Publisher as _, Relay};
use outbox_inbox::{Emit, Event, HandlerError, Reply, Router, idempotent_handler};
use outbox_testing::MemoryBroker;
use serde::{Deserialize, Serialize};

use crate::on_every_backend;
use crate::support::{OrderPlaced, TestDb, placed, publish, with_ack_wait};

#[derive(Debug, Serialize)]
struct Receipt {
    number: u64,
}

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "receipt", name = "issued")]
struct ReceiptIssued {
    #[domain_event(aggregate_id)]
    number: u64,
}

#[idempotent_handler(consumer = "cashier", on_duplicate = result)]
async fn issue(
    event: Event<OrderPlaced>,
) -> Result<(Reply<Receipt>, Emit<[ReceiptIssued; 1]>), HandlerError> {
    let number = event.order_id * 10;
    Ok((Reply(Receipt { number }), Emit([ReceiptIssued { number }])))
}

#[idempotent_handler(consumer = "herald", on_duplicate = reemit)]
async fn announce(event: Event<OrderPlaced>) -> Result<Emit<Vec<ReceiptIssued>>, HandlerError> {
    Ok(Emit(vec![ReceiptIssued {
        number: event.order_id,
    }]))
}

#[idempotent_handler(
    consumer = "cashier_by_key",
    strategy = key(OrderPlaced::number),
    on_duplicate = result,
    attempts = 1
)]
async fn issue_by_key(event: Event<OrderPlaced>) -> Result<Reply<Receipt>, HandlerError> {
    Ok(Reply(Receipt {
        number: event.order_id * 10,
    }))
}

impl OrderPlaced {
    fn number(&self) -> String {
        self.order_id.to_string()
    }
}

/// Handles one message that the broker delivers repeatedly.
async fn deliver_twice(test: &TestDb, router: Router) -> Vec<(bool, Option<Vec<u8>>)> {
    let broker = MemoryBroker::new();
    publish(&broker, &placed(7)).await;
    broker.duplicate_deliveries(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let inbox = test.inbox(&broker, router).on_handled(move |handled| {
        let result = handled.result.map(<[u8]>::to_vec);
        told.lock().unwrap().push((handled.duplicate, result));
    });
    let report = inbox.drain().await.unwrap();
    assert_eq!((report.handled, report.duplicates), (1, 1));
    let seen = seen.lock().unwrap();
    seen.clone()
}

async fn a_duplicate_gets_the_stored_result(test: TestDb) {
    let seen = deliver_twice(&test, Router::new().handler::<issue>()).await;
    let result = Some(br#"{"number":70}"#.to_vec());
    assert_eq!(seen, [(false, result.clone()), (true, result)]);
    assert_eq!(test.follow_ups().await, 1, "returned events are recorded once");
}

/// The broker loses more acknowledgements than there are attempts.
async fn every_duplicate_gets_the_stored_result(test: TestDb) {
    let broker = MemoryBroker::new();
    publish(&broker, &placed(7)).await;
    broker.lose_consumer_acks(3);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let router = Router::new().handler::<issue_by_key>();
    let inbox = test.inbox(&broker, router).with_config(with_ack_wait(2));
    let inbox = inbox.on_handled(move |handled| {
        let result = handled.result.map(<[u8]>::to_vec);
        told.lock().unwrap().push((handled.duplicate, result));
    });
    let report = inbox.drain().await.unwrap();
    assert_eq!(
        (report.handled, report.duplicates, report.dead_letters),
        (1, 3, 0)
    );
    let result = Some(br#"{"number":70}"#.to_vec());
    let again = (true, result.clone());
    assert_eq!(
        *seen.lock().unwrap(),
        [(false, result), again.clone(), again.clone(), again]
    );
}

/// The follow-up event was published and is recorded. A duplicate publishes it again, as the same event.
async fn a_duplicate_publishes_the_follow_ups_again(test: TestDb) {
    let broker = MemoryBroker::new();
    let published = publish(&broker, &placed(7)).await;
    let inbox = test.inbox(&broker, Router::new().handler::<announce>());
    assert_eq!(inbox.drain().await.unwrap().handled, 1);
    let store = outbox_sea_orm::SqlStore::new(test.db.clone());
    let out = MemoryBroker::new();
    Relay::new(store.clone(), out.publisher()).drain().await.unwrap();
    // A copy that the broker does not recognize as a duplicate.
    let mut copy = published.clone();
    copy.id = MessageId::fresh();
    broker.publisher().publish(&copy).await.unwrap();
    assert_eq!(inbox.drain().await.unwrap().duplicates, 1);
    Relay::new(store, out.publisher()).drain().await.unwrap();
    let messages = out.messages();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].event_id, messages[1].event_id);
    assert_ne!(messages[0].id, messages[1].id);
}

on_every_backend!(
    a_duplicate_gets_the_stored_result,
    every_duplicate_gets_the_stored_result,
    a_duplicate_publishes_the_follow_ups_again,
);

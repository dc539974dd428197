//! A relay releases a pause that holds more messages than one call releases.

use outbox_core::{OutboxStore as _, PauseRequest, Relay};
use outbox_testing::MemoryBroker;
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::{AGGREGATE, Probe};

use crate::support::TestDb;

crate::on_every_backend!(drain_publishes_all_messages_of_an_ended_pause);

const HELD: u64 = 2_100;

async fn drain_publishes_all_messages_of_an_ended_pause(test: TestDb) {
    let numbers: Vec<u64> = (0..HELD).collect();
    for numbers in numbers.chunks(500) {
        let events = numbers.iter().map(|n| Probe::noted(n.to_string(), *n));
        test.record(events.collect::<Vec<_>>()).await.unwrap();
    }
    let (store, broker) = (test.store(), MemoryBroker::new());
    let request = PauseRequest {
        aggregate_type: Some(AGGREGATE.to_owned()),
        reason: "the consumer is overrun".to_owned(),
        by: "alice".to_owned(),
        lasts: None,
    };
    store.pause(&request).await.unwrap();
    let drain = async || {
        Relay::new(store.clone(), broker.publisher())
            .drain()
            .await
            .unwrap()
    };
    assert_eq!(drain().await.published, 0);
    let blocks = format!("SELECT count(*) FROM {}", test.blocks());
    assert_eq!(test.int(&blocks).await.cast_unsigned(), HELD);
    assert!(store.unpause(Some(AGGREGATE)).await.unwrap());
    assert_eq!(drain().await.published, HELD);
    assert_eq!(store.pauses().await.unwrap(), []);
    assert_eq!(test.int(&blocks).await, 0);
}

//! The in-memory store and broker beyond the suites: their clocks, their faults, and the helpers for users' tests.

use std::time::Duration;

use outbox_core::testing::conformance::probe::{self, NOTED, OBSERVED, Probe};
use outbox_core::testing::conformance::store::RowStatus;
use outbox_core::testing::{
    DecodeEventError, DedupWindow, Ledger, LogEntry, MemoryBroker, MemoryStore, RecordError, check_order,
    decode_event,
};
use outbox_core::{
    ConsumerSpec, Delivery, EventError, Events, FailureClass, Message, NewMessage, OutboxStore, OwnerId,
    Publisher, Source, SourceError, StoreError, Subscription,
};
use tokio::time::{advance, timeout};

const MINUTE: Duration = Duration::from_secs(60);

fn spec(name: &str) -> ConsumerSpec {
    ConsumerSpec {
        name: name.to_owned(),
        events: vec![NOTED],
        ack_wait: MINUTE,
        in_flight_max: 10,
    }
}

async fn class_of(broker: &MemoryBroker, message: &Message) -> FailureClass {
    broker.publisher().publish(message).await.unwrap_err().class()
}

#[tokio::test(start_paused = true)]
async fn leases_run_out_by_tokios_clock() {
    let store = MemoryStore::new();
    assert_eq!(
        store.acquire(OwnerId::fresh(), MINUTE, 64).await.unwrap().len(),
        64
    );
    advance(MINUTE - Duration::from_millis(1)).await;
    assert_eq!(
        store.acquire(OwnerId::fresh(), MINUTE, 64).await.unwrap().len(),
        0
    );
    advance(Duration::from_millis(1)).await;
    assert_eq!(
        store.acquire(OwnerId::fresh(), MINUTE, 64).await.unwrap().len(),
        64
    );
}

#[tokio::test(start_paused = true)]
async fn the_stores_clock_runs_with_tokios() {
    let store = MemoryStore::new();
    let start = store.now();
    assert_eq!(start, time::macros::datetime!(2026-01-01 00:00 UTC));
    advance(MINUTE).await;
    store.record([Probe::noted("a", 1)]).unwrap();
    assert_eq!(store.rows()[0].message.created_at, start + MINUTE);
}

#[test]
fn recorded_events_can_be_read_back() {
    let store = MemoryStore::new();
    store
        .record(
            Events::new()
                .with(Probe::noted("a", 1))
                .with(Probe::observed("b", 2)),
        )
        .unwrap();
    drop(store.begin());
    let mut open = store.begin();
    open.record([Probe::noted("a", 3)]).unwrap();
    assert_eq!(
        store.recorded::<Probe>().iter().map(Probe::n).collect::<Vec<_>>(),
        [1, 2]
    );
    open.commit().unwrap();
    assert_eq!(store.recorded::<Probe>().len(), 3);
    assert!(store.rows().iter().all(|row| row.status == RowStatus::Pending));
}

#[test]
fn nothing_of_a_refused_call_is_recorded() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let mixed = Events::new().with(Probe::noted("a", 1)).with(Probe::noted("", 2));
    assert!(matches!(transaction.record(mixed), Err(EventError::Key { .. })));
    transaction.record([Probe::noted("a", 3)]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        store.recorded::<Probe>().iter().map(Probe::n).collect::<Vec<_>>(),
        [3]
    );

    let keyed = || [Probe::noted("a", 4).with_dedup_key("k")];
    store.record(keyed()).unwrap();
    assert!(matches!(store.record(keyed()), Err(RecordError::Duplicate(error)) if error.key == "k"));
}

#[tokio::test]
async fn faults_of_the_store_say_whether_the_work_was_done() {
    let store = MemoryStore::new();
    let acquire = || store.acquire(OwnerId::fresh(), MINUTE, 1);
    store.fail_next(1);
    assert!(matches!(acquire().await, Err(StoreError::Database { .. })));
    assert_eq!(
        acquire().await.unwrap()[0].partition,
        0,
        "a failed call did nothing"
    );
    store.lose_answers(1);
    assert!(matches!(acquire().await, Err(StoreError::Database { .. })));
    assert_eq!(
        acquire().await.unwrap()[0].partition,
        2,
        "a lost answer did its work"
    );
    store.set_down(true);
    assert!(store.backlog().await.is_err());
    store.set_down(false);
    store.backlog().await.unwrap();
}

#[tokio::test]
async fn planned_refusals_store_nothing() {
    let broker = MemoryBroker::new();
    let message = probe::message(NOTED, "a", 1);
    broker.fail_next(2, FailureClass::Backpressure);
    for _ in 0..2 {
        assert_eq!(class_of(&broker, &message).await, FailureClass::Backpressure);
    }
    broker.fail_matching(|message| message.aggregate.id == "a", FailureClass::Permanent);
    assert_eq!(class_of(&broker, &message).await, FailureClass::Permanent);
    broker
        .publisher()
        .publish(&probe::message(NOTED, "b", 1))
        .await
        .unwrap();
    broker.set_down(true);
    assert_eq!(class_of(&broker, &message).await, FailureClass::Transient);
    broker.clear_faults();
    assert_eq!(broker.publisher().publish(&message).await.unwrap().position, 2);
    assert_eq!(broker.publishes(), 6);
}

#[tokio::test]
async fn lost_confirmations_and_ghosts_are_unknown() {
    let broker = MemoryBroker::new();
    let (lost, ghost) = (probe::message(NOTED, "a", 1), probe::message(NOTED, "b", 1));
    broker.lose_acks(1);
    assert_eq!(class_of(&broker, &lost).await, FailureClass::Unknown);
    assert_eq!(
        broker.log().len(),
        1,
        "the message is stored, only its confirmation was lost"
    );
    assert!(broker.publisher().publish(&lost).await.unwrap().duplicate);

    broker.ghost(1);
    assert_eq!(class_of(&broker, &ghost).await, FailureClass::Unknown);
    assert_eq!(broker.log().len(), 1, "the ghost is still on its way");
    broker.release_ghosts();
    assert_eq!(broker.messages(), [lost, ghost.clone()]);
    assert!(broker.publisher().publish(&ghost).await.unwrap().duplicate);
}

#[tokio::test(start_paused = true)]
async fn ids_are_forgotten_outside_the_window() {
    let again = async |broker: &MemoryBroker, message: &Message| {
        broker.publisher().publish(message).await.unwrap().duplicate
    };
    let message = probe::message(NOTED, "a", 1);

    let broker = MemoryBroker::new().with_dedup_window(DedupWindow::Time(MINUTE));
    assert!(!again(&broker, &message).await);
    advance(MINUTE / 2).await;
    assert!(again(&broker, &message).await);
    advance(MINUTE / 2).await;
    assert!(!again(&broker, &message).await);

    let broker = MemoryBroker::new().with_dedup_window(DedupWindow::Messages(2));
    assert!(!again(&broker, &message).await);
    assert!(!again(&broker, &probe::message(NOTED, "b", 1)).await);
    assert!(again(&broker, &message).await);
    assert!(!again(&broker, &probe::message(NOTED, "b", 2)).await);
    assert!(!again(&broker, &message).await);

    let broker = MemoryBroker::new();
    assert!(!again(&broker, &message).await);
    broker.forget_ids();
    assert!(!again(&broker, &message).await);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_publish_may_have_been_stored() {
    let broker = MemoryBroker::new().with_latency(Duration::from_millis(10));
    let publisher = broker.publisher();
    let message = probe::message(NOTED, "a", 1);
    assert!(
        timeout(Duration::from_millis(5), publisher.publish(&message))
            .await
            .is_err()
    );
    assert_eq!(broker.log().len(), 0);
    assert!(
        timeout(Duration::from_millis(15), publisher.publish(&message))
            .await
            .is_err()
    );
    assert_eq!(broker.log().len(), 1);
    assert!(publisher.publish(&message).await.unwrap().duplicate);
}

#[tokio::test(start_paused = true)]
async fn an_outage_interrupts_subscriptions_and_loses_acknowledgements() {
    let broker = MemoryBroker::new();
    broker
        .publisher()
        .publish(&probe::message(NOTED, "a", 1))
        .await
        .unwrap();
    let mut subscription = broker.source().subscribe(&spec("c")).await.unwrap();
    let delivery = subscription.next().await.unwrap();
    broker.set_down(true);
    assert!(matches!(
        delivery.ack().await,
        Err(SourceError::Interrupted { .. })
    ));
    assert!(matches!(
        subscription.next().await,
        Err(SourceError::Interrupted { .. })
    ));
    assert!(matches!(
        broker.source().subscribe(&spec("d")).await,
        Err(SourceError::Interrupted { .. })
    ));
    broker.set_down(false);
    let delivery = subscription.next().await.unwrap();
    assert_eq!(delivery.incoming().delivery_count, 2);
    assert!(!broker.is_idle("c"));
    delivery.ack().await.unwrap();
    broker.until_idle("c").await;
    assert_eq!(broker.deliveries("c"), 2);
}

/// An outage in the middle of a wait ends it; otherwise a consumer would not hear of it.
#[tokio::test(start_paused = true)]
async fn an_outage_ends_a_wait() {
    let broker = MemoryBroker::new();
    let mut subscription = broker.source().subscribe(&spec("c")).await.unwrap();
    let waiting = tokio::spawn(async move { subscription.next().await.map(|_| ()) });
    advance(MINUTE).await;
    broker.set_down(true);
    assert!(matches!(
        waiting.await.unwrap(),
        Err(SourceError::Interrupted { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn deliveries_can_be_doubled_and_acknowledgements_lost() {
    let broker = MemoryBroker::new();
    broker
        .publisher()
        .publish(&probe::message(NOTED, "a", 1))
        .await
        .unwrap();
    let mut subscription = broker.source().subscribe(&spec("c")).await.unwrap();
    broker.duplicate_deliveries(1);
    broker.lose_consumer_acks(1);
    let mut counts = Vec::new();
    while !broker.is_idle("c") {
        let delivery = subscription.next().await.unwrap();
        counts.push(delivery.incoming().delivery_count);
        delivery.ack().await.unwrap();
    }
    assert_eq!(counts, [1, 2]);

    broker
        .publisher()
        .publish(&probe::message(NOTED, "a", 2))
        .await
        .unwrap();
    broker.duplicate_deliveries(1);
    for count in 1..=2 {
        let delivery = subscription.next().await.unwrap();
        assert_eq!(
            delivery.incoming().delivery_count,
            count,
            "a copy comes although it was acknowledged"
        );
        delivery.ack().await.unwrap();
    }
    assert!(broker.is_idle("c"));
}

#[tokio::test(start_paused = true)]
async fn foreign_messages_reach_consumers_as_they_are() {
    let broker = MemoryBroker::new();
    let headers = vec![("X-Foreign".to_owned(), "yes".to_owned())];
    let position = broker.inject("events.probe.1.noted", headers.clone(), &b"\xff"[..]);
    let other = vec![("ce-type".to_owned(), OBSERVED.event_type())];
    broker.inject("events.probe.1.observed", other, &b""[..]);
    let mut subscription = broker.source().subscribe(&spec("c")).await.unwrap();
    let delivery = subscription.next().await.unwrap();
    assert_eq!(delivery.incoming().headers, headers);
    assert_eq!(delivery.incoming().position, position);
    delivery.ack().await.unwrap();
    assert!(
        broker.is_idle("c"),
        "a foreign message of another type is not for this consumer"
    );
    assert!(matches!(broker.log()[0], LogEntry { message: Err(_), .. }));
    assert_eq!(broker.messages(), []);
}

#[tokio::test]
async fn consumers_that_cannot_work_are_refused() {
    let source = MemoryBroker::new().source();
    for name in ["", "a.b", "a b", "ü", &"x".repeat(65)] {
        assert!(
            matches!(
                source.subscribe(&spec(name)).await,
                Err(SourceError::Configuration { .. })
            ),
            "{name:?}"
        );
    }
    let idle = ConsumerSpec {
        in_flight_max: 0,
        ..spec("c")
    };
    assert!(matches!(
        source.subscribe(&idle).await,
        Err(SourceError::Configuration { .. })
    ));
}

#[tokio::test]
async fn a_deleted_consumer_is_gone() {
    let broker = MemoryBroker::new();
    let mut old = broker.source().subscribe(&spec("c")).await.unwrap();
    broker.delete_consumer("c");
    assert!(matches!(old.next().await, Err(SourceError::Gone { .. })));
    // A new consumer of the same name is another one.
    broker.source().subscribe(&spec("c")).await.unwrap();
    assert!(matches!(old.next().await, Err(SourceError::Gone { .. })));
}

#[test]
fn subjects_name_the_aggregate_and_the_event() {
    let broker = MemoryBroker::new();
    let publish =
        |message: &Message| futures_util::FutureExt::now_or_never(broker.publisher().publish(message));
    publish(&probe::message(NOTED, "a.b", 1)).unwrap().unwrap();
    publish(&Message {
        subject: Some("fixed".to_owned()),
        ..probe::message(NOTED, "a", 1)
    })
    .unwrap()
    .unwrap();
    let subjects: Vec<String> = broker.log().into_iter().map(|entry| entry.subject).collect();
    assert_eq!(subjects, ["events.probe.a.b.noted", "fixed"]);
}

#[test]
fn events_are_decoded_only_from_their_own_type_and_version() {
    let message = NewMessage::from_event(&Probe::noted("a", 7))
        .unwrap()
        .into_message(Some(1), MemoryStore::new().now());
    assert_eq!(decode_event::<Probe>(&message).unwrap().n(), 7);
    let other = Message {
        event_type: "probe.unheard".to_owned(),
        ..message.clone()
    };
    assert!(matches!(
        decode_event::<Probe>(&other),
        Err(DecodeEventError::Type { .. })
    ));
    let later = Message {
        event_version: 2,
        ..message.clone()
    };
    assert!(matches!(
        decode_event::<Probe>(&later),
        Err(DecodeEventError::Version { found: 2, .. })
    ));
    let broken = Message {
        payload: "{}".into(),
        ..message
    };
    assert!(matches!(
        decode_event::<Probe>(&broken),
        Err(DecodeEventError::Payload(_))
    ));
}

#[test]
fn order_is_checked_per_aggregate_on_first_copies() {
    let noted = |id, sequence| probe::message(NOTED, id, sequence);
    let (a1, a2, b1) = (noted("a", 1), noted("a", 2), noted("b", 1));
    check_order([&a1, &b1, &a1, &a2, &a1]).unwrap();
    check_order([&a2, &a1]).unwrap_err();
    check_order([&a1, &noted("a", 3)]).unwrap_err();
    check_order([&a1, &noted("a", 1)]).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_ledger_of_the_in_memory_pair_balances_after_a_drain() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    store
        .record(
            Events::new()
                .with(Probe::noted("a", 1))
                .with(Probe::noted("a", 2)),
        )
        .unwrap();
    assert_eq!(
        Ledger::of(&store, &broker).check().len(),
        2,
        "nothing is published yet"
    );
    broker.lose_acks(1);
    let relay = outbox_core::Relay::new(store.clone(), broker.publisher());
    while relay.drain().await.is_err() {}
    store.until_drained().await;
    Ledger::of(&store, &broker).assert_balanced();
}

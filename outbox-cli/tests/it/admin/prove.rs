//! Proofs over an in-memory outbox and stream. Inboxes are covered by the tests of `outbox
//! prove`.

use std::collections::HashSet;
use std::time::Duration;

use outbox::core::{Message, Relay, codec};
use outbox_cli::admin::{ConsumerFloor, Proof, ProofError, ProofRequest, RowsKept, Verdict, prove};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, MemoryStore};
use time::OffsetDateTime;

use crate::admin::plant::{LONG, aggregate, noted};

fn all() -> ProofRequest {
    let day = time::Duration::days(2);
    let now = time::macros::datetime!(2026-01-01 00:00 UTC);
    ProofRequest::new(now - day, now + day)
}

fn keeping(rows_kept: RowsKept) -> ProofRequest {
    ProofRequest { rows_kept, ..all() }
}

async fn books(store: &MemoryStore, broker: &MemoryBroker, request: &ProofRequest) -> Proof {
    let floors = async || {
        Ok(vec![ConsumerFloor {
            consumer: "billing".to_owned(),
            floor: 1,
        }])
    };
    let proved = prove(store, broker, &[], floors, request).await;
    proved.expect("it is proven")
}

async fn of_stream(store: &MemoryStore, broker: &MemoryBroker, request: &ProofRequest) -> Proof {
    let floors = async || Ok(Vec::new());
    let proved = prove(store, broker, &[], floors, request).await;
    proved.expect("it is proven")
}

async fn drain(store: &MemoryStore, broker: &MemoryBroker) {
    let relay = Relay::new(store.clone(), broker.publisher());
    relay.drain().await.expect("all is published");
}

fn inject(broker: &MemoryBroker, message: &Message, source: &str) -> u64 {
    let (headers, payload) = codec::encode(message, source).received();
    broker.inject("events.probe", headers, payload)
}

fn message(store: &MemoryStore, number: usize) -> Message {
    store.rows()[number].message.clone()
}

fn ids(findings: &outbox_cli::admin::Findings) -> Vec<String> {
    let first = findings.first.iter();
    first.map(|found| found.event_id.to_string()).collect()
}

async fn published() -> (MemoryStore, MemoryBroker) {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    for id in ["a", "b", "a", "c", "a"] {
        noted(&store, id);
    }
    drain(&store, &broker).await;
    (store, broker)
}

#[tokio::test(start_paused = true)]
async fn messages_before_stream_start_may_have_expired() {
    let (store, broker) = published().await;
    broker.lose_stream_sequences(&HashSet::from([1]), true);
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!((proof.lost.count, proof.stream.expired), (0, 1));
    assert_eq!(proof.verdict, Verdict::CannotTell);
}

#[tokio::test(start_paused = true)]
async fn a_ghost_has_no_row_and_a_sender_of_this_outbox() {
    let (store, broker) = published().await;
    let other = MemoryStore::new();
    noted(&other, "x");
    noted(&other, "y");
    let (ghost, foreign) = (message(&other, 0), message(&other, 1));
    inject(&broker, &ghost, "memory");
    inject(&broker, &foreign, "billing");
    broker.inject("events.foreign", Vec::new(), "not ours");
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!(ids(&proof.ghosts), [ghost.event_id.to_string()]);
    assert_eq!((proof.stream.of_others, proof.stream.foreign), (1, 1));
    assert_eq!(proof.verdict, Verdict::NotBalanced);
    for kept in [
        RowsKept::Nothing,
        RowsKept::Since(ghost.created_at + Duration::from_secs(1)),
    ] {
        let proof = of_stream(&store, &broker, &keeping(kept)).await;
        assert_eq!((proof.ghosts.count, proof.stream.unrecorded), (0, 1));
        assert_eq!(proof.verdict, Verdict::CannotTell);
    }
}

#[tokio::test(start_paused = true)]
async fn message_different_from_its_row_is_a_ghost() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    noted(&store, "a");
    noted(&store, "b");
    let altered = Message {
        aggregate: aggregate("c"),
        ..message(&store, 1)
    };
    inject(&broker, &altered, "memory");
    drain(&store, &broker).await;
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!(ids(&proof.ghosts), [altered.event_id.to_string()]);
}

fn delete(store: &MemoryStore, number: usize) {
    let row_id = store.rows()[number].row_id;
    store.discard(row_id);
}

#[tokio::test(start_paused = true)]
async fn a_number_without_a_row_is_a_hole() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    for id in ["a", "b", "a", "a", "a", "b"] {
        noted(&store, id);
    }
    delete(&store, 3);
    delete(&store, 2);
    drain(&store, &broker).await;
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!((proof.verdict, proof.holes.count), (Verdict::NotBalanced, 2));
    let found = &proof.holes.first[0];
    assert_eq!(
        (found.aggregate().as_str(), found.hole.numbers().as_str()),
        ("probe/a", "#2 to #3")
    );
    assert_eq!(
        (proof.holes.first.len(), proof.lost.count, proof.ghosts.count),
        (1, 0, 0)
    );
    let more = of_stream(&store, &broker, &ProofRequest { shown: 0, ..all() }).await;
    assert_eq!((more.holes.count, more.holes.first.len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn sequence_after_the_last_row_is_a_hole() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    for id in ["a", "a", "a", "b"] {
        noted(&store, id);
    }
    let end = message(&store, 2).created_at;
    delete(&store, 2);
    delete(&store, 1);
    drain(&store, &broker).await;
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!((proof.verdict, proof.holes.count), (Verdict::NotBalanced, 2));
    let found = &proof.holes.first[0];
    assert_eq!(
        (found.aggregate().as_str(), found.hole.numbers().as_str()),
        ("probe/a", "#2 to #3")
    );
    let more = of_stream(&store, &broker, &ProofRequest { shown: 0, ..all() }).await;
    assert_eq!((more.holes.count, more.holes.first.len()), (2, 0));
    let span = ProofRequest::new(OffsetDateTime::UNIX_EPOCH, end);
    for request in [span, keeping(RowsKept::Nothing)] {
        assert_eq!(of_stream(&store, &broker, &request).await.holes.count, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_hole_is_never_balanced() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    noted(&store, "a");
    let events = (0..10_002).map(|_| Probe::noted("a", 1));
    store.record(events.collect::<Vec<_>>()).expect("recorded");
    delete(&store, 1);
    drain(&store, &broker).await;
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!((proof.holes.count, proof.holes.unknown), (0, 1));
    assert_eq!(proof.verdict, Verdict::CannotTell, "{:?}", proof.reasons);
}

#[tokio::test(start_paused = true)]
async fn purgeable_rows_are_no_holes() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    for _ in 0..3 {
        noted(&store, "a");
    }
    let end = message(&store, 2).created_at;
    drain(&store, &broker).await;
    delete(&store, 1);
    for kept in [RowsKept::Nothing, RowsKept::Since(end + Duration::from_secs(1))] {
        let proof = of_stream(&store, &broker, &keeping(kept)).await;
        assert_eq!(proof.holes.count, 0, "{proof:?}");
    }
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!((proof.holes.count, proof.ghosts.count), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn copies_are_counted_and_are_no_fault() {
    let (store, broker) = published().await;
    inject(&broker, &message(&store, 0), "memory");
    inject(&broker, &message(&store, 0), "memory");
    let selection = outbox::core::Selection::all().aggregate(&aggregate("b"));
    let replayed = outbox_testing::Operator::replay(&store, &selection).await;
    assert_eq!(replayed.expect("it is replayed"), 1);
    drain(&store, &broker).await;
    let proof = of_stream(&store, &broker, &all()).await;
    assert_eq!(proof.verdict, Verdict::Balanced, "{proof:?}");
    assert_eq!((proof.outbox.committed, proof.outbox.replayed), (5, 1));
    assert_eq!((proof.stream.events, proof.stream.copies), (5, 3));
}

#[tokio::test(start_paused = true)]
async fn events_after_the_ack_floor_are_open() {
    let (store, broker) = published().await;
    let proof = books(&store, &broker, &all()).await;
    let billing = &proof.consumers[0];
    assert_eq!((billing.passed, billing.open, billing.handled), (1, 4, 0));
    assert_eq!(proof.verdict, Verdict::CannotTell);
    let no_inbox = proof
        .reasons
        .iter()
        .any(|reason| reason.what.contains("no inbox tables"));
    assert!(no_inbox, "{:?}", proof.reasons);
}

/// Messages recorded outside the span are ignored, wherever the stream stores them.
#[tokio::test(start_paused = true)]
async fn span_includes_start_and_excludes_end() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let mut times: Vec<OffsetDateTime> = Vec::new();
    for _ in 0..3 {
        noted(&store, "a");
        times.push(store.rows().last().expect("a row").message.created_at);
        tokio::time::advance(LONG).await;
    }
    drain(&store, &broker).await;
    for (since, until, committed) in [(0, 2, 2), (0, 1, 1), (1, 2, 1)] {
        let request = ProofRequest::new(times[since], times[until]);
        let proof = of_stream(&store, &broker, &request).await;
        assert_eq!(
            (proof.outbox.committed, proof.stream.events),
            (committed, committed)
        );
        assert_eq!(proof.verdict, Verdict::Balanced, "{proof:?}");
    }
    let empty = ProofRequest::new(times[0] - LONG, times[0]);
    assert_eq!(of_stream(&store, &broker, &empty).await.outbox.committed, 0);
}

#[tokio::test(start_paused = true)]
async fn oversized_span_is_rejected() {
    let (store, broker) = published().await;
    let request = ProofRequest {
        facts_max: 9,
        ..all()
    };
    let refused = prove(&store, &broker, &[], async || Ok(Vec::new()), &request).await;
    assert!(
        matches!(refused, Err(ProofError::TooMany { max: 9, .. })),
        "{refused:?}"
    );
}

//! Every cause of `why` is produced and named.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use outbox_admin::{
    Cause, Explanation, Hole, MessageOrAggregate, Obstacle, Question, Readers, Refused, Refuses, RowsKept,
    State, StreamView, Timeline,
};
use outbox_core::{
    Announcement, Events, Message, MessageId, NewMessage, OutboxStore, OwnerId, Registration, RelayHealth,
    RelayMode, Retention, Selection,
};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

use crate::plant::{LONG, aggregate, dead, failed, noted, published, record, relay, settle};

struct Stream {
    located: Result<Option<u64>, String>,
    refused: Option<Refused>,
    kept: RowsKept,
}

const EMPTY: Stream = Stream {
    located: Ok(None),
    refused: None,
    kept: RowsKept::Nothing,
};

const AT_SEVEN: Stream = Stream {
    located: Ok(Some(7)),
    refused: None,
    kept: RowsKept::Nothing,
};

#[async_trait]
impl StreamView for Stream {
    async fn locate(&self, _: &Message) -> Result<Option<u64>, String> {
        self.located.clone()
    }

    async fn refuses(&self) -> Result<Refuses, String> {
        let refused = self.refused.clone();
        Ok(Box::new(move |_| refused.clone()))
    }

    async fn readers(&self, _: &Message, _: u64) -> Result<Readers, String> {
        Ok(Readers::default())
    }

    fn rows_kept(&self) -> RowsKept {
        self.kept
    }
}

async fn explain(store: &MemoryStore, stream: Stream, of: MessageOrAggregate) -> Explanation {
    let question = Question::of(store, &of).await.expect("read");
    question.explain(store, &stream, LONG).await
}

async fn why(store: &MemoryStore, id: MessageId) -> Explanation {
    explain(store, EMPTY, MessageOrAggregate::Message(id)).await
}

async fn why_aggregate(store: &MemoryStore, stream: Stream) -> Explanation {
    explain(store, stream, MessageOrAggregate::Aggregate(aggregate("a"))).await
}

#[track_caller]
fn check(explanation: &Explanation, expected: &[(Cause, State)], text: &str) {
    let found: Vec<_> = explanation
        .findings
        .iter()
        .map(|finding| (finding.cause, finding.state))
        .collect();
    assert_eq!(found, expected, "{explanation:?}");
    let first = &explanation.findings[0];
    assert!(first.what.contains(text), "{first:?}");
    assert!(
        explanation
            .findings
            .iter()
            .all(|finding| !finding.next.is_empty()),
        "{explanation:?}"
    );
    let worst = expected.iter().map(|(_, state)| *state).max();
    assert_eq!(Some(explanation.state), worst);
}

#[tokio::test(start_paused = true)]
async fn aggregate_with_deleted_rows_has_recorded_count() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    for _ in 0..2 {
        let id = noted(&store, "a");
        settle(&store, &leases, id, published(false)).await;
    }
    let explanation = why_aggregate(&store, EMPTY).await;
    check(
        &explanation,
        &[(Cause::NotRecorded, State::Degraded)],
        "has recorded 2 messages",
    );
}

async fn why_of(store: &MemoryStore, kept: RowsKept) -> Explanation {
    why_aggregate(store, Stream { kept, ..EMPTY }).await
}

#[tokio::test(start_paused = true)]
async fn deleted_row_is_not_reported_as_published() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    for _ in 0..3 {
        noted(&store, "a");
    }
    store.discard(store.rows()[1].row_id);
    let all = why_of(&store, RowsKept::All).await;
    assert_eq!(all.findings[0].cause, Cause::NumberMissing);
    assert_eq!(all.findings[0].state, State::Stuck);
    let what = &all.findings[0].what;
    assert!(
        what.contains("no row for #2.") && what.contains("Unknown: whether"),
        "{what}"
    );
    store.discard(store.rows()[1].row_id);
    let what = &why_of(&store, RowsKept::All).await.findings[0].what;
    assert!(what.contains("no row for #2 to #3."), "{what}");
    store.discard(store.rows()[0].row_id);
    let none = why_of(&store, RowsKept::All).await;
    check(
        &none,
        &[(Cause::NumberMissing, State::Stuck)],
        "has none of them although",
    );
    drop(leases);
}

#[tokio::test(start_paused = true)]
async fn the_retention_of_a_relay_counts() {
    let store = MemoryStore::new();
    for _ in 0..3 {
        noted(&store, "a");
    }
    store.discard(store.rows()[1].row_id);
    for (retention, is_named) in [
        (None, true),
        (Some(Retention::Keep), true),
        (Some(Retention::KeepFor(LONG * 1_000_000)), true),
        (Some(Retention::KeepFor(Duration::from_secs(1))), false),
        (Some(Retention::Delete), false),
    ] {
        let announcement = Announcement {
            registration: Registration::new(RelayMode::Polling, None, retention).into(),
            ..Announcement::default()
        };
        let announced = store.announce(OwnerId::fresh(), LONG, &announcement).await;
        announced.expect("announced");
        let explained = why_of(&store, RowsKept::All).await;
        let mut causes = explained.findings.iter().map(|finding| finding.cause);
        let found = causes.any(|cause| cause == Cause::NumberMissing);
        assert_eq!(found, is_named, "{retention:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hole_is_reported_within_the_row_limit() {
    for (later, is_known) in [(Duration::ZERO, false), (Duration::from_secs(2 * 3600), true)] {
        let store = MemoryStore::new();
        for _ in 0..3 {
            noted(&store, "a");
        }
        store.discard(store.rows()[1].row_id);
        tokio::time::advance(later).await;
        let events = (0..10_000).map(|_| Probe::noted("a", 1));
        store.record(events.collect::<Vec<_>>()).expect("recorded");
        let explained = why_of(&store, RowsKept::All).await;
        let is_named = explained.findings[0].cause == Cause::NumberMissing;
        assert_eq!((is_named, explained.unseen.is_empty()), (is_known, is_known));
    }
}

#[tokio::test(start_paused = true)]
async fn possibly_purged_rows_are_no_holes() {
    let store = MemoryStore::new();
    for _ in 0..3 {
        noted(&store, "a");
    }
    store.discard(store.rows()[1].row_id);
    let later = store.now() + Duration::from_secs(1);
    for kept in [RowsKept::Nothing, RowsKept::Since(later)] {
        let explained = why_of(&store, kept).await;
        let causes = explained.findings.iter().map(|finding| finding.cause);
        assert_eq!(causes.collect::<Vec<_>>(), [Cause::NoRelay]);
    }
    for _ in 0..2 {
        store.discard(store.rows()[0].row_id);
    }
    let none = why_of(&store, RowsKept::Nothing).await;
    check(
        &none,
        &[(Cause::NotRecorded, State::Degraded)],
        "Unknown: whether",
    );
}

#[tokio::test(start_paused = true)]
async fn a_timeline_names_numbers_without_rows() {
    let store = MemoryStore::new();
    for _ in 0..5 {
        noted(&store, "a");
    }
    for number in [4, 1] {
        store.discard(store.rows()[number].row_id);
    }
    let limited = async |limit| {
        let limit = NonZeroU32::new(limit).expect("not 0");
        let timeline = Timeline::of(&store, &aggregate("a"), Selection::all(), limit).await;
        let holes = timeline.expect("read").holes;
        holes.iter().map(Hole::numbers).collect::<Vec<_>>()
    };
    assert_eq!(limited(10).await, ["#2", "#5"]);
    assert_eq!(limited(2).await, ["#2"]);
}

#[tokio::test(start_paused = true)]
async fn due_message_waits_for_its_relay() {
    let store = MemoryStore::new();
    let id = noted(&store, "a");
    relay(&store, RelayHealth::Healthy).await;
    let explanation = why(&store, id).await;
    check(
        &explanation,
        &[(Cause::RelayBehind, State::Degraded)],
        "is pending and due",
    );
    let of_aggregate = why_aggregate(&store, EMPTY).await;
    assert_eq!(of_aggregate.findings, explanation.findings);
    let second = noted(&store, "a");
    let after = "is pending and comes after #1 probe.noted";
    check(
        &why(&store, second).await,
        &[(Cause::RelayBehind, State::Degraded)],
        after,
    );
}

fn delayed(store: &MemoryStore, event: &Probe) -> MessageId {
    let message = NewMessage::from_event(event).expect("encoded");
    record(
        store,
        Events::new().with(message.available_at(store.now() + LONG)),
    )
}

#[tokio::test(start_paused = true)]
async fn delayed_message_blocks_its_successors() {
    let store = MemoryStore::new();
    let first = delayed(&store, &Probe::noted("a", 1));
    let second = noted(&store, "a");
    let leases = relay(&store, RelayHealth::Healthy).await;
    check(
        &why(&store, first).await,
        &[(Cause::Delayed, State::Healthy)],
        "due in 10 min",
    );
    let other = noted(&store, "b");
    settle(&store, &leases, other, published(true)).await;
    check(
        &why(&store, first).await,
        &[(Cause::Delayed, State::Healthy)],
        "due in 10 min",
    );
    let explanation = why(&store, second).await;
    check(
        &explanation,
        &[(Cause::BehindDelayed, State::Degraded)],
        "waits behind #1 probe.noted",
    );
    assert_eq!(explanation.findings[0].message, Some(first));
    let alone = delayed(&store, &Probe::sampled("b", 1));
    check(
        &why(&store, alone).await,
        &[(Cause::Delayed, State::Healthy)],
        "due in",
    );
}

#[tokio::test(start_paused = true)]
async fn failed_message_and_its_successors_wait_for_retry() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let (first, second) = (noted(&store, "a"), noted(&store, "a"));
    settle(&store, &leases, first, failed()).await;
    check(
        &why(&store, first).await,
        &[(Cause::BackingOff, State::Degraded)],
        "retried in 10 min: no answer",
    );
    let explanation = why(&store, second).await;
    check(
        &explanation,
        &[(Cause::BehindFailed, State::Degraded)],
        "has failed 1 time and",
    );
    assert_eq!(explanation.findings[0].next, ["outbox resume probe/a"]);
    assert_eq!(explanation.unpublished, 2);
    // An unsequenced message has its own back-off, which an operator cannot end.
    let alone = record(&store, [Probe::sampled("a", 1)]);
    settle(&store, &leases, alone, failed()).await;
    let explanation = why(&store, alone).await;
    check(
        &explanation,
        &[(Cause::BackingOff, State::Degraded)],
        "retried in 10 min",
    );
    assert_eq!(explanation.findings[0].next, [format!("outbox show {alone}")]);
}

#[tokio::test(start_paused = true)]
async fn repeatable_broker_rejection_has_its_cause() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let (first, second) = (noted(&store, "a"), noted(&store, "a"));
    settle(&store, &leases, first, failed()).await;
    let refused = |obstacle| Refused {
        obstacle,
        what: "stream `S` takes nothing".to_owned(),
        next: "nats stream edit S".into(),
    };
    for (obstacle, cause, state) in [
        (Obstacle::NoStream, Cause::NoStream, State::Stuck),
        (Obstacle::NotCaptured, Cause::NotCaptured, State::Stuck),
        (Obstacle::Full, Cause::Full, State::Degraded),
        (Obstacle::Sealed, Cause::Refused, State::Stuck),
    ] {
        for (id, text) in [
            (first, "has failed 1 time, and would again"),
            (second, "waits behind #1"),
        ] {
            let stream = Stream {
                refused: Some(refused(obstacle)),
                ..EMPTY
            };
            let explanation = explain(&store, stream, MessageOrAggregate::Message(id)).await;
            check(&explanation, &[(cause, state)], text);
            let finding = &explanation.findings[0];
            assert_eq!(finding.message, Some(first));
            assert_eq!(finding.next, ["nats stream edit S", "outbox doctor"]);
        }
    }
    check(
        &why(&store, first).await,
        &[(Cause::BackingOff, State::Degraded)],
        "retried in 10 min",
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_message_without_relay_has_two_findings() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, failed()).await;
    store.age_leases(LONG * 3);
    let expected = [
        (Cause::BackingOff, State::Degraded),
        (Cause::NoRelay, State::Stuck),
    ];
    check(&why(&store, id).await, &expected, "has failed");
}

#[tokio::test(start_paused = true)]
async fn halting_dead_letter_explains_blocked_messages() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let (first, second) = (noted(&store, "a"), noted(&store, "a"));
    settle(&store, &leases, first, dead(true)).await;
    let explanation = why(&store, first).await;
    check(
        &explanation,
        &[(Cause::DeadLetter, State::Stuck)],
        "maximum payload exceeded",
    );
    assert!(explanation.findings[0].what.contains("1 message waits behind it"));
    assert_eq!(
        explanation.findings[0].next,
        [
            format!("outbox retry {first}"),
            format!("outbox retry --skip {first}")
        ]
    );
    let explanation = why(&store, second).await;
    check(
        &explanation,
        &[(Cause::BehindDeadLetter, State::Stuck)],
        "halted by #1 probe.noted",
    );
    assert_eq!(explanation.findings[0].message, Some(first));
    let explanation = why_aggregate(&store, EMPTY).await;
    check(
        &explanation,
        &[(Cause::DeadLetter, State::Stuck)],
        "it halts its aggregate",
    );
    let alone = record(&store, [Probe::sampled("a", 1)]);
    check(
        &why(&store, alone).await,
        &[(Cause::RelayBehind, State::Degraded)],
        "due",
    );
}

/// The message row is the same whether or not the log relay has published the message.
#[tokio::test(start_paused = true)]
async fn logged_message_is_on_stream_or_relay_is_behind() {
    let store = MemoryStore::new();
    let _log = store.log();
    let id = noted(&store, "a");
    check(
        &why(&store, id).await,
        &[(Cause::RelayBehind, State::Degraded)],
        "recorded for a log relay",
    );
    let explanation = explain(&store, AT_SEVEN, MessageOrAggregate::Message(id)).await;
    check(
        &explanation,
        &[(Cause::OnStream, State::Healthy)],
        "stream sequence 7",
    );
}

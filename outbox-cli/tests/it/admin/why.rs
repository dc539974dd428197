//! Deleted rows and logged messages in `why`. Other causes: `outbox why` on real servers.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use outbox::core::{
    Announcement, Message, MessageId, OutboxStore, OwnerId, Registration, RelayHealth, RelayMode, Retention,
    Selection,
};
use outbox_cli::admin::{
    Cause, Explanation, Hole, MessageOrAggregate, Question, Readers, RowsKept, State, StreamView, Timeline,
};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

use crate::admin::plant::{LONG, aggregate, noted, relay};

struct Stream {
    located: Result<Option<u64>, String>,
    kept: RowsKept,
}

const EMPTY: Stream = Stream {
    located: Ok(None),
    kept: RowsKept::Nothing,
};

const AT_SEVEN: Stream = Stream {
    located: Ok(Some(7)),
    kept: RowsKept::Nothing,
};

#[async_trait]
impl StreamView for Stream {
    async fn locate(&self, _: &Message) -> Result<Option<u64>, String> {
        self.located.clone()
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

//! Promises to operators: what was given up is counted, listed, and can be brought back.

use std::num::NonZeroU32;

use super::support::{
    ALL, commit_each, failed, fetch, first, id_of, lease_all, only, parked, settle, sorted_keys, state_of,
};
use super::{RowStatus, StoreFixture};
use crate::message::MessageId;
use crate::store::{Backlog, FetchedRow, Lease, OutboxAdmin, OutboxStore, Verdict};

/// Commits two messages of `a` and one of `b`, parks the first of `a`, and returns it with the leases.
async fn with_parked<F: StoreFixture>(fixture: &F, halt: bool) -> (Vec<Lease>, FetchedRow) {
    commit_each(fixture, &["a", "a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = first(&fetch(fixture, &leases, ALL).await, "a");
    settle(fixture, &leases, &rows, failed()).await;
    assert_eq!(settle(fixture, &leases, &rows, parked(halt)).await, 1);
    let row = rows.into_iter().next().expect("there is one row");
    (leases, row)
}

async fn backlog<F: StoreFixture>(fixture: &F) -> Backlog {
    fixture.store().backlog().await.expect("backlog answers")
}

async fn retry<F: StoreFixture>(fixture: &F, id: MessageId) -> bool {
    fixture.store().retry(id).await.expect("retry answers")
}

async fn skip<F: StoreFixture>(fixture: &F, id: MessageId) -> bool {
    fixture.store().skip(id).await.expect("skip answers")
}

/// The backlog counts what is pending (behind a halted aggregate, too), what is parked, and who waits.
pub async fn backlog_counts_what_waits_and_what_was_given_up<F: StoreFixture>(fixture: &F) {
    assert_eq!(backlog(fixture).await, Backlog::default());
    commit_each(fixture, &["a", "a", "b", "c"]).await;
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 4,
            ..Backlog::default()
        }
    );
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settle(fixture, &leases, &first(&rows, "a"), parked(true)).await;
    settle(fixture, &leases, &only(&rows, "b"), parked(false)).await;
    settle(fixture, &leases, &only(&rows, "c"), Verdict::Published).await;
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 1,
            parked: 2,
            halted_aggregates: 1
        }
    );
}

/// The list of parked messages says what is needed to decide, oldest first, and no more than asked for.
pub async fn parked_messages_are_listed_oldest_first<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_parked(fixture, true).await;
    let rows = only(&fetch(fixture, &leases, ALL).await, "b");
    assert_eq!(settle(fixture, &leases, &rows, parked(false)).await, 1);

    let listed = fixture
        .store()
        .parked(NonZeroU32::MAX)
        .await
        .expect("parked answers");
    assert_eq!(
        listed.iter().map(|message| message.id).collect::<Vec<_>>(),
        [id_of(&row), id_of(&rows[0])]
    );
    let message = &listed[0];
    assert_eq!((&message.aggregate, message.sequence), (&row.aggregate, Some(1)));
    assert_eq!(
        (message.event_type.as_str(), message.attempts),
        ("probe.noted", 2)
    );
    assert_eq!(
        (message.error.as_str(), message.halts),
        ("refused for good", true)
    );
    assert!(!listed[1].halts);
    let one = fixture
        .store()
        .parked(NonZeroU32::MIN)
        .await
        .expect("parked answers");
    assert_eq!(one, listed[..1]);
}

/// A retried message is pending again, as if it had never failed, and is handed out.
pub async fn retry_makes_a_parked_message_pending_again<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_parked(fixture, false).await;
    assert!(retry(fixture, id_of(&row)).await);
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        sorted_keys(&rows),
        [("a", Some(1)), ("a", Some(2)), ("b", Some(1))]
    );
    assert_eq!(
        first(&rows, "a"),
        [row],
        "first in its aggregate again, with no attempts used"
    );
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 3,
            ..Backlog::default()
        }
    );
}

/// A retried message no longer halts its aggregate, and goes before everything that waited.
pub async fn retry_releases_a_halted_aggregate<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_parked(fixture, true).await;
    commit_each(fixture, &["a"]).await;
    assert!(retry(fixture, id_of(&row)).await);
    let rows = fetch(fixture, &leases, ALL).await;
    let of_a: Vec<_> = super::support::keys(&rows)
        .into_iter()
        .filter(|(id, _)| *id == "a")
        .collect();
    assert_eq!(of_a, [("a", Some(1)), ("a", Some(2)), ("a", Some(3))]);
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 4,
            ..Backlog::default()
        }
    );
    // It can be given up again.
    assert_eq!(
        settle(fixture, &leases, &first(&rows, "a"), parked(true)).await,
        1
    );
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 3,
            parked: 1,
            halted_aggregates: 1
        }
    );
}

/// Only parked messages can be retried; others are left as they are.
pub async fn retry_of_what_is_not_parked_does_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settle(fixture, &leases, &only(&rows, "a"), Verdict::Published).await;
    settle(fixture, &leases, &only(&rows, "b"), failed()).await;
    for row in [
        MessageId::fresh(),
        id_of(&only(&rows, "a")[0]),
        id_of(&only(&rows, "b")[0]),
    ] {
        assert!(!retry(fixture, row).await, "{row} was retried");
    }
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(only(&rest, "b")[0].attempts, 1);
    assert_eq!(rest.len(), 1);
}

/// A skipped message stays parked, and its aggregate goes on without it.
pub async fn skip_releases_a_halted_aggregate<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_parked(fixture, true).await;
    assert!(skip(fixture, id_of(&row)).await);
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rows), [("a", Some(2)), ("b", Some(1))]);
    assert_eq!(
        backlog(fixture).await,
        Backlog {
            pending: 2,
            parked: 1,
            halted_aggregates: 0
        }
    );
    let state = state_of(fixture, id_of(&row))
        .await
        .expect("parked rows are kept");
    assert_eq!(state.status, RowStatus::Parked);
    let listed = fixture
        .store()
        .parked(NonZeroU32::MAX)
        .await
        .expect("parked answers");
    assert_eq!((listed.len(), listed[0].halts), (1, false));
    // Changing one's mind is allowed.
    assert!(retry(fixture, id_of(&row)).await);
    assert_eq!(fetch(fixture, &leases, ALL).await.len(), 3);
}

/// Only parked messages can be skipped; others are left as they are.
pub async fn skip_of_what_is_not_parked_does_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settle(fixture, &leases, &only(&rows, "a"), Verdict::Published).await;
    for row in [
        MessageId::fresh(),
        id_of(&only(&rows, "a")[0]),
        id_of(&only(&rows, "b")[0]),
    ] {
        assert!(!skip(fixture, row).await, "{row} was skipped");
    }
    assert_eq!(sorted_keys(&fetch(fixture, &leases, ALL).await), [("b", Some(1))]);
}

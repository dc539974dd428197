//! Promises on verdicts: fenced by the lease, recorded once, and safe to repeat.

use super::support::{
    ALL, acquire, assert_published, commit, commit_each, failed, fetch, id_of, lease_all, only, parked,
    settle, state_of,
};
use super::{RowStatus, StoreFixture};
use crate::message::Events;
use crate::store::{ERROR_CHARS_MAX, OutboxAdmin, OutboxStore, OwnerId, Verdict};
use crate::testing::conformance::probe::Probe;

/// A relay that was paused until somebody else took over can record nothing.
pub async fn a_stale_epoch_settles_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, stale) = lease_all(fixture).await;
    let rows = fetch(fixture, &stale, ALL).await;
    fixture.expire_leases().await;
    let (_, current) = lease_all(fixture).await;

    for verdict in [Verdict::Published, failed(), parked(true)] {
        assert_eq!(
            settle(fixture, &stale, &rows, verdict.clone()).await,
            0,
            "{verdict:?} was accepted"
        );
    }
    let untouched = fetch(fixture, &current, ALL).await;
    assert_eq!(untouched, rows, "a stale verdict changed a row");
    assert_eq!(settle(fixture, &current, &rows, Verdict::Published).await, 2);
}

/// A lease that was given back counts as stale, although nobody has taken the partition over yet.
pub async fn a_released_lease_settles_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    fixture
        .store()
        .release(owner, &leases)
        .await
        .expect("release answers");
    assert_eq!(settle(fixture, &leases, &rows, Verdict::Published).await, 0);
    let row = state_of(fixture, id_of(&rows[0]))
        .await
        .expect("the row is still there");
    assert_eq!(row.status, RowStatus::Pending);
}

/// Verdicts are refused partition by partition: one that went to somebody else does not hold up the others.
pub async fn one_stale_lease_does_not_hold_up_the_others<F: StoreFixture>(fixture: &F) {
    let mut events = Events::new();
    for n in 0..100 {
        events.push(Probe::noted(format!("a{n}"), n));
    }
    commit(fixture, events).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    let lost = rows[0].partition;
    let lost_lease: Vec<_> = leases
        .iter()
        .copied()
        .filter(|lease| lease.partition == lost)
        .collect();
    fixture
        .store()
        .release(owner, &lost_lease)
        .await
        .expect("release answers");
    let taken = acquire(fixture, OwnerId::fresh()).await;
    assert_eq!(taken.len(), 1, "exactly the released partition is free");

    let lost_rows: Vec<_> = rows.iter().filter(|row| row.partition == lost).collect();
    let accepted = settle(fixture, &leases, &rows, Verdict::Published).await;
    assert_eq!(
        accepted,
        rows.len() - lost_rows.len(),
        "verdicts of the lost partition are refused, and only those"
    );
    let rest = fetch(fixture, &taken, ALL).await;
    assert_eq!(rest.iter().collect::<Vec<_>>(), lost_rows);
    let nothing = settle(fixture, &leases, &[], Verdict::Published).await;
    assert_eq!(nothing, 0);
}

/// A failure leaves the message where it is and counts.
pub async fn a_failed_message_stays_pending_with_an_attempt_more<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    for attempts in 0..3 {
        let rows = fetch(fixture, &leases, ALL).await;
        assert_eq!(only(&rows, "a")[0].attempts, attempts);
        assert_eq!(only(&rows, "b")[0].attempts, 0);
        assert_eq!(settle(fixture, &leases, &only(&rows, "a"), failed()).await, 1);
    }
    let rows = only(&fetch(fixture, &leases, ALL).await, "a");
    let row = state_of(fixture, id_of(&rows[0]))
        .await
        .expect("the row is still there");
    assert_eq!((row.status, row.attempts), (RowStatus::Pending, 3));
    // Giving up uses an attempt as well: the one that failed.
    assert_eq!(settle(fixture, &leases, &rows, parked(true)).await, 1);
    let row = state_of(fixture, id_of(&rows[0]))
        .await
        .expect("the row is still there");
    assert_eq!((row.status, row.attempts), (RowStatus::Parked, 4));
}

/// After an answer was lost the relay sends its verdicts again, and is told that they hold. A late verdict of another kind changes nothing.
pub async fn settling_again_changes_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    let (published, given_up) = (only(&rows, "a"), only(&rows, "b"));
    for _ in 0..2 {
        let accepted = settle(fixture, &leases, &published, Verdict::Published).await;
        assert_eq!(accepted, 1, "the partition is held, whatever happened to the row");
        assert_eq!(settle(fixture, &leases, &given_up, parked(true)).await, 1);
    }
    settle(fixture, &leases, &published, failed()).await;
    settle(fixture, &leases, &published, parked(true)).await;
    assert_published(fixture, id_of(&published[0])).await;
    let row = state_of(fixture, id_of(&given_up[0]))
        .await
        .expect("parked rows are kept");
    assert_eq!((row.status, row.attempts), (RowStatus::Parked, 1));
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    assert_eq!(
        fixture
            .store()
            .backlog()
            .await
            .expect("backlog answers")
            .halted_aggregates,
        1
    );
}

/// Whatever an error says, it can be recorded: too long, with NUL, in any script. Else the failure path would fail itself.
pub async fn a_long_error_text_can_be_settled<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    let (_, leases) = lease_all(fixture).await;
    let error = "NUL \0 ü 😀 'quoted' \"twice\" \\ ".repeat(500);
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        settle(fixture, &leases, &rows, Verdict::Failed { error: error.clone() }).await,
        1
    );
    assert_eq!(
        settle(fixture, &leases, &rows, Verdict::Parked { error, halt: true }).await,
        1
    );
    let listed = fixture
        .store()
        .parked(std::num::NonZeroU32::MIN)
        .await
        .expect("parked answers");
    let kept = &listed[0].error;
    assert!(
        kept.starts_with("NUL  ü 😀"),
        "the beginning of the error is kept: {kept:?}"
    );
    assert!(kept.chars().count() <= ERROR_CHARS_MAX);
}

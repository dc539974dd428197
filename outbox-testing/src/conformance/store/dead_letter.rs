//! Rules for dead letters: retry and skip.

use super::StoreFixture;
use super::support::*;

/// After a dead letter without halt, the other messages of the block are published.
pub async fn a_dead_letter_without_halt_lets_a_block_drain<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a"], std::time::Duration::ZERO).await;
    let rows = first(&fetch_waiting(fixture, &leases).await, "a");
    settled(fixture, &leases, &rows, dead(false)).await;
    let rest = fetch_waiting(fixture, &leases).await;
    assert_eq!(keys(&rest), "a2");
    settled(fixture, &leases, &rest, dead(false)).await;
    assert_eq!(blocked(fixture).await, []);
    commit_each(fixture, &["a"]).await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "a3");
}

/// A retried dead letter is pending with zero attempts, and can become a dead letter again.
pub async fn retry_releases_a_halted_aggregate<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "a", "b"], true).await;
    assert_eq!(store(fixture).retry(&Selection::dead_letters()).await, 1);
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rows), "a1 a2 b1");
    assert_eq!(first(&rows, "a")[0].attempts, 0);
    assert_eq!(blocked(fixture).await, []);
    settled(fixture, &leases, &first(&rows, "a"), dead(true)).await;
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.dead_letters, backlog.halted_aggregates), (1, 1));
    assert!(shown(fixture, &row).await.halts);
}

/// A retried message is fetched before its successors.
pub async fn a_retried_message_comes_before_its_successors<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "a", "a"], true).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    commit_each(fixture, &["a"]).await;
    assert_eq!(store(fixture).retry(&Selection::id(id_of(&row))).await, 1);
    let waiting = fetch_waiting(fixture, &leases).await;
    if let Some(first) = waiting.first() {
        assert_eq!(
            first.row_id,
            row.row_id,
            "a successor came first: {}",
            keys(&waiting)
        );
    }
    let mut arrived = Vec::new();
    for _ in 0..10 {
        let found = fetch(fixture, &leases, ALL).await;
        let rows = [found, fetch_waiting(fixture, &leases).await].concat();
        settled(fixture, &leases, &rows, published()).await;
        arrived.extend(sequences(&rows));
    }
    assert_eq!(arrived, [1, 2, 3, 4]);
    assert_eq!(blocked(fixture).await, []);
}

/// A dead letter without halt, retried during a block, is fetched first. The back-off of the block
/// continues.
pub async fn a_dead_letter_without_halt_can_be_retried_under_a_block<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "a", "a"], false).await;
    let rows = first(&fetch(fixture, &leases, ALL).await, "a");
    settled(fixture, &leases, &rows, hindered(LONG)).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    assert_eq!(store(fixture).retry(&Selection::dead_letters()).await, 1);
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert!(store(fixture).resume(&aggregate("a")).await);
    let rows = fetch_waiting(fixture, &leases).await;
    assert_eq!(keys(&rows), "a1 a2 a3");
    assert_eq!((rows[0].row_id, rows[0].attempts), (row.row_id, 0));
}

/// Retry and skip change dead letters only.
pub async fn retry_and_skip_change_dead_letters_only<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "b", "c"], LONG).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &only(&rows, "b"), published()).await;
    for selection in [Selection::id(MessageId::fresh()), Selection::all()] {
        assert_eq!(store(fixture).retry(&selection).await, 0, "{selection:?}");
        assert_eq!(store(fixture).skip(&selection).await, 0, "{selection:?}");
    }
    assert_eq!(blocked(fixture).await.len(), 1, "a back-off was ended");
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(ageless(&rest), ageless(&only(&rows, "c")));
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
}

/// A message rejected during a halt waits. Otherwise later messages would overtake it after the
/// halt.
pub async fn a_message_rejected_during_a_halt_waits_in_order<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "a", "a", "b", "b", "b"]).await;
    let (a, b) = (of(&rows, "a"), of(&rows, "b"));
    settled(fixture, &leases, &a[..1], dead(true)).await;
    settled(fixture, &leases, &a[1..2], dead(true)).await;
    settled(fixture, &leases, &b[..2], dead(true)).await;
    for row in [&a[1], &b[1]] {
        let shown = shown(fixture, row).await;
        assert_eq!((shown.status, shown.halts), (MessageStatus::Waiting, false));
        assert_eq!((shown.attempts, shown.failures), (1, 1));
    }
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.dead_letters, backlog.halted_aggregates), (2, 2));

    assert_eq!(store(fixture).skip(&Selection::dead_letters()).await, 2);
    let rows = fetch_waiting(fixture, &leases).await;
    assert_eq!(sorted_keys(&rows), "a2 a3 b2 b3");
    settled(fixture, &leases, &first(&rows, "a"), dead(true)).await;
    assert!(shown(fixture, &a[1]).await.halts);
    assert_eq!(sorted_keys(&fetch_waiting(fixture, &leases).await), "b2 b3");
}

/// Skipping a dead letter ends the halt, and the message stays a dead letter.
pub async fn skip_releases_a_halted_aggregate<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "a", "a", "b"], true).await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "b1");
    assert_eq!(store(fixture).skip(&Selection::id(id_of(&row))).await, 1);
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "a2 a3");
    let expected = Backlog {
        pending: 3,
        pending_estimate: 3,
        waiting: 2,
        dead_letters: 1,
        ..Backlog::default()
    };
    assert_eq!(counts(fixture).await, expected);
    let shown = shown(fixture, &row).await;
    assert_eq!((shown.status, shown.halts), (MessageStatus::Dead, false));

    assert_eq!(store(fixture).retry(&Selection::id(id_of(&row))).await, 1);
    fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "a1 a2 a3");
}

/// Skipping the only message of a block removes the block.
pub async fn skip_of_the_only_message_removes_the_block<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a"], true).await;
    assert_eq!(blocked(fixture).await.len(), 1);
    assert_eq!(store(fixture).skip(&Selection::dead_letters()).await, 1);
    assert_eq!(blocked(fixture).await, []);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.blocked_aggregates, backlog.halted_aggregates), (0, 0));
    commit_each(fixture, &["a"]).await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "a2");
    assert_eq!(status_of(fixture, &row).await, MessageStatus::Dead);
}

/// Retry and skip take a selection.
pub async fn retry_and_skip_take_a_selection<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "a"]).await;
    for id in ["a", "b", "c"] {
        settled(fixture, &leases, &first(&rows, id), dead(true)).await;
    }
    let only_b = Selection::dead_letters().aggregate(&aggregate("b"));
    assert_eq!(store(fixture).retry(&only_b).await, 1);
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "b1");
    let until_a = Selection::dead_letters().after(of(&rows, "a")[0].row_id);
    assert_eq!(store(fixture).skip(&until_a).await, 1, "only c is behind a");
    let halted = blocked(fixture).await;
    assert_eq!(ids(halted.iter().map(|blocked| &blocked.aggregate)), ["a"]);
}

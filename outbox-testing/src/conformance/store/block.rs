//! Rules for blocked aggregates.

use super::StoreFixture;
use super::support::*;

/// While an aggregate is blocked, later fetches skip its messages. Other aggregates continue.
pub async fn messages_of_a_blocked_aggregate_wait_alone<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a", "b", "a"], LONG).await;
    commit_each(fixture, &["a", "c"]).await;
    let fetched = store(fixture).fetch(pending(&leases)).await;
    assert_eq!(sorted_keys(&fetched.due), "b1 c1");
    assert_eq!(
        fetched.waits.len(),
        1,
        "the fetch returns no waiting message again"
    );
    assert_eq!(fetched.waits[0].verdict, Verdict::Waits);
    assert!(!fetched.more, "no bound ended the fetch");
    apply(fixture, &leases, &fetched.waits).await;
    let again = store(fixture).fetch(pending(&leases)).await;
    assert_eq!((again.due.len(), again.waits.len()), (2, 0));
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.pending, backlog.waiting), (6, 4));
    assert_eq!((backlog.blocked_aggregates, backlog.halted_aggregates), (1, 0));
}

/// A fetch examines at most `limit` rows, waiting rows included.
pub async fn a_fetch_examines_at_most_its_limit<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a"], LONG).await;
    commit_each(fixture, &["a", "a", "a", "a", "a", "a", "b"]).await;
    let request = FetchRequest {
        limit: limit(2),
        ..pending(&leases)
    };
    for _ in 0..3 {
        let fetched = store(fixture).fetch(request).await;
        assert_eq!(
            keys(&fetched.due),
            "",
            "the fetch examined more rows than its limit"
        );
        assert_eq!(fetched.waits.len(), 2);
        assert!(fetched.more, "the limit ended the fetch");
        apply(fixture, &leases, &fetched.waits).await;
    }
    assert_eq!(keys(&store(fixture).fetch(request).await.due), "b1");
}

/// After a block ends, a fetch returns the waiting messages unchanged and in order.
pub async fn an_ended_block_returns_its_messages_in_order<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "b", "a", "a"], SHORT).await;
    let rows = until_blocks_have_ended(fixture, &leases).await;
    assert_eq!(keys(&rows), "a1 a2 a3");
    assert!(rows.iter().all(|row| row.waited && row.sequenced));
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "b1");
}

/// If a message fails several times, its last failure sets the end of the block.
pub async fn a_message_that_fails_again_blocks_again<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a"], Duration::ZERO).await;
    let rows = first(&fetch_waiting(fixture, &leases).await, "a");
    settled(fixture, &leases, &rows, hindered(LONG)).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    settled(fixture, &leases, &rows, hindered(Duration::ZERO)).await;
    assert_eq!(fetch_waiting(fixture, &leases).await.len(), 2);
}

/// A fetch of waiting messages is bounded by `limit`, `per_aggregate` and `bytes`.
pub async fn a_fetch_of_waiting_messages_keeps_its_bounds<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "a", "b", "a", "b"], Duration::ZERO).await;
    let all = store(fixture).fetch_waiting(waiting(&leases)).await;
    assert_eq!((all.due.len(), all.more), (6, false));
    let two_each = WaitingRequest {
        per_aggregate: limit(2),
        ..waiting(&leases)
    };
    assert_eq!(
        sorted_keys(&store(fixture).fetch_waiting(two_each).await.due),
        "a1 a2 b1 b2"
    );
    let four = WaitingRequest {
        limit: limit(4),
        ..waiting(&leases)
    };
    let fetched = store(fixture).fetch_waiting(four).await;
    assert_eq!((fetched.due.len(), fetched.more), (4, true));
    let few_bytes = WaitingRequest {
        bytes: 1,
        ..waiting(&leases)
    };
    let fetched = store(fixture).fetch_waiting(few_bytes).await;
    assert_eq!((fetched.due.len(), fetched.more), (1, true));
}

/// A fetch of waiting messages skips excluded aggregates.
pub async fn excluded_aggregates_are_skipped<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "c", "b"], Duration::ZERO).await;
    let without = |excluding| WaitingRequest {
        excluding,
        ..waiting(&leases)
    };
    let few = [aggregate("a"), aggregate("b"), aggregate("x")];
    assert_eq!(keys(&store(fixture).fetch_waiting(without(&few)).await.due), "c1");
    let many: Vec<_> = (0..500).map(|n| aggregate(format!("x{n}"))).collect();
    let many = [many, vec![aggregate("a")]].concat();
    assert_eq!(
        sorted_keys(&store(fixture).fetch_waiting(without(&many)).await.due),
        "b1 b2 c1"
    );
}

/// Pending messages with a lower sequence precede the waiting messages of a block.
pub async fn a_block_orders_by_sequence<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b", "a"]).await;
    fixture.set_back_row_ids().await;
    let (leases, rows) = with_rows(fixture, &["a", "a", "b"]).await;
    let of_a = of(&rows, "a");
    for rows in [&of_a[..2], &of_a[3..]] {
        settled(fixture, &leases, rows, hindered(Duration::ZERO)).await;
    }
    let waiting = until_blocks_have_ended(fixture, &leases).await;
    assert_eq!(keys(&waiting), "a1 a2", "3 is pending");
    fetch(fixture, &leases, ALL).await;
    let waiting = until_blocks_have_ended(fixture, &leases).await;
    assert_eq!(keys(&waiting), "a1 a2 a3 a4");
}

/// A fetch skips waiting rows that are in flight.
pub async fn waiting_rows_in_flight_are_skipped<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "a", "a"], Duration::ZERO).await;
    let rows = fetch_waiting(fixture, &leases).await;
    let in_flight = [first(&rows, "a")[0].key(), only(&rows, "b")[0].key()];
    let request = WaitingRequest {
        in_flight: &in_flight,
        ..waiting(&leases)
    };
    let fetched = store(fixture).fetch_waiting(request).await;
    assert_eq!(keys(&fetched.due), "a2 a3");
}

/// A fetch of waiting messages skips partitions without a lease.
pub async fn only_leased_partitions_return_waiting_messages<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "c", "d", "e", "f"], Duration::ZERO).await;
    let (some, rest) = leases.split_at(leases.len() / 2);
    let mut found = 0;
    for leases in [some, rest] {
        let rows = store(fixture).fetch_waiting(waiting(leases)).await.due;
        for row in &rows {
            let is_leased = leases.iter().any(|lease| lease.partition == row.partition);
            assert!(is_leased, "{} is not leased", row.partition);
        }
        found += rows.len();
    }
    assert_eq!(found, 6);
    assert_eq!(
        store(fixture).fetch_waiting(waiting(&[])).await,
        Fetched::default()
    );
}

/// The block that ended first is fetched first, so that no message starves.
pub async fn the_block_that_ended_first_comes_first<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c"]).await;
    for id in ["b", "c", "a"] {
        settled(fixture, &leases, &only(&rows, id), hindered(Duration::ZERO)).await;
        // Some clocks have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "b1 c1 a1");
}

/// The last waiting message ends the block.
pub async fn a_block_ends_with_its_last_waiting_message<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a"], Duration::ZERO).await;
    for left in [1, 0] {
        let rows = first(&fetch_waiting(fixture, &leases).await, "a");
        settled(fixture, &leases, &rows, published()).await;
        assert_eq!(blocked(fixture).await.len(), left);
    }
    commit_each(fixture, &["a"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), "a3");
    assert!(!rows[0].waited);
}

/// If a fetched message is moved to the waiting messages after its aggregate's block has ended, the
/// message is not lost, and no later message overtakes it.
pub async fn a_message_recorded_while_a_block_drains_keeps_its_place<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a"], Duration::ZERO).await;
    let rows = fetch_waiting(fixture, &leases).await;
    commit_each(fixture, &["a"]).await;
    let late = store(fixture).fetch(pending(&leases)).await;
    assert_eq!((late.due.len(), late.waits.len()), (0, 1));
    settled(fixture, &leases, &rows, published()).await;
    apply(fixture, &leases, &late.waits).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), "a2", "the message is lost");

    settled(fixture, &leases, &rows, hindered(Duration::ZERO)).await;
    commit_each(fixture, &["a"]).await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "");
    commit_each(fixture, &["a"]).await;
    let rows = fetch_waiting(fixture, &leases).await;
    assert_eq!(keys(&rows), "a2 a3");
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "a4");
}

/// If the aggregate has no block, the verdict `Waits` has no effect.
pub async fn setting_aside_without_a_block_changes_nothing<F: StoreFixture>(fixture: &F) {
    commit_all(fixture, [Probe::noted("a", 1), Probe::sampled("b", 2)]).await;
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &rows, Verdict::Waits).await;
    for row in &rows {
        assert_eq!(status_of(fixture, row).await, MessageStatus::Pending);
    }
    assert_eq!(blocked(fixture).await, []);
    assert_eq!(fetch(fixture, &leases, ALL).await.len(), 2);
}

/// Unsequenced messages do not wait for a block and do not halt an aggregate.
pub async fn unsequenced_messages_neither_block_nor_halt<F: StoreFixture>(fixture: &F) {
    let probes = [Probe::noted("a", 1), Probe::sampled("a", 2), Probe::noted("a", 3)];
    commit_all(fixture, probes).await;
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &rows[..1], hindered(LONG)).await;
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rest), "a-");
    assert!(!rest[0].sequenced);
    settled(fixture, &leases, &rest, dead(true)).await;
    assert!(!shown(fixture, &rest[0]).await.halts);
    assert_eq!(store(fixture).backlog().await.halted_aggregates, 0);
    assert!(store(fixture).resume(&aggregate("a")).await);
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "a1 a2");
}

/// After a failure, an unsequenced message waits, and other messages of its aggregate do not.
pub async fn an_unsequenced_failure_waits_alone<F: StoreFixture>(fixture: &F) {
    let probes = [
        Probe::sampled("a", 1),
        Probe::noted("a", 2),
        Probe::sampled("b", 3),
    ];
    commit_all(fixture, probes).await;
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &first(&rows, "a"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "b"), hindered(SHORT)).await;
    assert_eq!(status_of(fixture, &rows[0]).await, MessageStatus::Waiting);
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "a1");
    assert_eq!(blocked(fixture).await, [], "no aggregate is blocked");

    let due = until_blocks_have_ended(fixture, &leases).await;
    assert_eq!(keys(&due), "b-");
    assert_eq!((due[0].failures, due[0].waited), (1, true));
    settled(fixture, &leases, &due, published()).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.pending, backlog.waiting), (2, 1));
}

/// A failure counts as an attempt only if the message caused the failure. The row keeps the last
/// error.
pub async fn failures_and_attempts_are_counted_separately<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a"], Duration::ZERO).await;
    let nothing_failed = Verdict::Blocked {
        delay: Duration::ZERO,
        error: None,
        attempt: false,
    };
    let verdicts = [failed(Duration::ZERO), nothing_failed, hindered(Duration::ZERO)];
    let mut counted = Vec::new();
    for verdict in verdicts {
        let rows = fetch_waiting(fixture, &leases).await;
        counted.push((rows[0].failures, rows[0].attempts));
        settled(fixture, &leases, &rows, verdict).await;
    }
    let rows = fetch_waiting(fixture, &leases).await;
    counted.push((rows[0].failures, rows[0].attempts));
    assert_eq!(counted, [(1, 0), (2, 1), (2, 1), (3, 1)], "failures and attempts");
    let shown = shown(fixture, &rows[0]).await;
    assert_eq!((shown.failures, shown.attempts), (3, 1));
    assert_eq!(shown.error.as_deref(), Some("out of reach"));
    settled(fixture, &leases, &rows, dead(true)).await;
    let state = state_of(fixture, id_of(&rows[0])).await;
    assert_eq!(state.expect("dead letters are kept").attempts, 2);
}

/// If an aggregate is halted, the settlement of another message in flight does not end the halt.
pub async fn a_halted_aggregate_stays_halted<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "a", "a"]).await;
    settled(fixture, &leases, &rows[..1], dead(true)).await;
    settled(fixture, &leases, &rows[1..2], hindered(Duration::ZERO)).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.waiting, backlog.halted_aggregates), (2, 1));
}

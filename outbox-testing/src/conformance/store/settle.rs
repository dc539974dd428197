//! Rules for settlements: the relay stores the result of each publish.

use super::StoreFixture;
use super::support::*;

fn deleted() -> Verdict {
    Verdict::Published { keep: false }
}

fn each_verdict() -> [Verdict; 7] {
    [
        Verdict::Waits,
        hindered(LONG),
        failed(Duration::ZERO),
        dead(true),
        dead(false),
        published(),
        deleted(),
    ]
}

/// A settlement with a stale lease epoch changes no message.
pub async fn a_stale_epoch_settles_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    let (_, stale) = lease_all(fixture).await;
    let rows = fetch(fixture, &stale, ALL).await;
    fixture.expire_leases().await;
    let (_, current) = lease_all(fixture).await;

    for verdict in each_verdict() {
        let accepted = settle(fixture, &stale, &rows, verdict.clone()).await;
        assert_eq!(accepted, 0, "{verdict:?} was accepted");
        let found = fetch(fixture, &current, ALL).await;
        assert_eq!(
            ageless(&found),
            ageless(&rows),
            "a stale {verdict:?} changed a row"
        );
    }
    assert_eq!(blocked(fixture).await, [], "a stale verdict blocked an aggregate");
    assert_eq!(settle(fixture, &current, &rows, published()).await, 2);
}

/// A settlement with a released lease changes no message.
pub async fn a_released_lease_settles_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    store(fixture).release(owner, &leases).await;
    for verdict in each_verdict() {
        assert_eq!(settle(fixture, &leases, &rows, verdict).await, 0);
    }
    assert_eq!(status_of(fixture, &rows[0]).await, MessageStatus::Pending);
}

/// A stale lease rejects only settlements of its own partition.
pub async fn a_stale_lease_does_not_affect_other_leases<F: StoreFixture>(fixture: &F) {
    commit_all(fixture, (0..100).map(|n| Probe::noted(format!("a{n}"), n))).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    let lost = rows[0].partition;
    let lost_lease = leases.iter().find(|lease| lease.partition == lost).copied();
    store(fixture).release(owner, lost_lease.as_slice()).await;
    let taken = acquire(fixture, OwnerId::fresh()).await;
    assert_eq!(taken.len(), 1, "exactly the released partition is free");

    let is_lost = |row: &&FetchedRow| row.partition == lost;
    let lost_rows: Vec<_> = rows.iter().filter(is_lost).cloned().collect();
    let refused = rows.len() - settle(fixture, &leases, &rows, published()).await;
    assert_eq!(
        refused,
        lost_rows.len(),
        "only verdicts of the lost partition are rejected"
    );
    let rest = fetch(fixture, &taken, ALL).await;
    assert_eq!(ageless(&rest), ageless(&lost_rows));
    assert_eq!(settle(fixture, &leases, &[], published()).await, 0);
}

/// A published message is kept or deleted, as requested.
pub async fn a_published_message_is_kept_or_deleted<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "b"]).await;
    let (kept, gone) = (only(&rows, "a"), first(&rows, "b"));
    settled(fixture, &leases, &kept, published()).await;
    settled(fixture, &leases, &gone, deleted()).await;
    let shown = shown(fixture, &kept[0]).await;
    assert_eq!(shown.status, MessageStatus::Published);
    assert!(shown.published_at.is_some());
    assert_eq!(state_of(fixture, id_of(&gone[0])).await, None);
    assert_eq!(list(fixture, &Selection::all()).await.len(), 2);
    assert_eq!(fetch(fixture, &leases, ALL).await.len(), 1);
}

/// A repeated settlement is accepted without effect.
pub async fn settling_again_changes_nothing<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b", "c", "d"]).await;
    commit_delayed(fixture, Probe::noted("e", 1), LONG).await;
    let (leases, rows) = with_rows(fixture, &["e"]).await;
    let verdicts = [
        ("a", published()),
        ("b", deleted()),
        ("c", dead(true)),
        ("d", hindered(LONG)),
    ];
    let mut states = Vec::new();
    for _ in 0..2 {
        for (id, verdict) in &verdicts {
            let accepted = settle(fixture, &leases, &only(&rows, id), verdict.clone()).await;
            assert_eq!(
                accepted, 1,
                "the partition is owned, whatever happened to the row"
            );
        }
        let mut shown = list(fixture, &Selection::all()).await;
        shown.iter_mut().for_each(|message| message.failures = 0);
        states.push((shown, counts(fixture).await));
    }
    assert_eq!(states[0], states[1]);
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
}

/// A late settlement does not halt an aggregate that an operator has released.
pub async fn a_late_verdict_changes_nothing<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c"]).await;
    settled(fixture, &leases, &only(&rows, "a"), published()).await;
    settled(fixture, &leases, &only(&rows, "b"), deleted()).await;
    settled(fixture, &leases, &only(&rows, "c"), dead(true)).await;
    assert_eq!(store(fixture).skip(&Selection::dead_letters()).await, 1);
    let before = list(fixture, &Selection::all()).await;
    for verdict in each_verdict() {
        assert_eq!(settle(fixture, &leases, &rows, verdict.clone()).await, 3);
        assert_eq!(list(fixture, &Selection::all()).await, before, "{verdict:?}");
    }
    assert_eq!(blocked(fixture).await, []);
}

/// A settlement applies only if the message id matches, because a database may reuse a row id.
pub async fn verdicts_need_the_message_id<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a", "b", "c"], Duration::ZERO).await;
    let mut rows = fetch(fixture, &leases, ALL).await;
    rows.extend(fetch_waiting(fixture, &leases).await);
    assert_eq!(rows.len(), 4);
    let before = list(fixture, &Selection::all()).await;
    for verdict in each_verdict() {
        let of_others = rows.iter().map(|row| Settlement {
            id: Some(MessageId::fresh()),
            ..row.with_verdict(verdict.clone())
        });
        let of_others: Vec<Settlement> = of_others.collect();
        let settled = store(fixture).settle(&leases, &of_others).await;
        assert_eq!(settled, 4, "the partitions are owned");
        assert_eq!(list(fixture, &Selection::all()).await, before, "{verdict:?}");
    }
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
}

/// A failure with a long error text can be settled.
pub async fn a_long_error_text_can_be_settled<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    let (_, leases) = lease_all(fixture).await;
    let error = "NUL \0 ü 😀 'quoted' \"twice\" \\ ".repeat(500);
    let rows = fetch(fixture, &leases, ALL).await;
    let blocked = Verdict::Blocked {
        delay: Duration::ZERO,
        error: Some(error.clone()),
        attempt: true,
    };
    for verdict in [blocked, Verdict::Dead { error, halt: true }] {
        settled(fixture, &leases, &rows, verdict).await;
        let kept = shown(fixture, &rows[0]).await.error.unwrap_or_default();
        assert!(
            kept.starts_with("NUL  ü 😀"),
            "the beginning of the error is kept: {kept:?}"
        );
        assert!(kept.chars().count() <= ERROR_CHARS_MAX);
    }
}

//! Rules for pauses.

use super::StoreFixture;
use super::support::*;

fn request(aggregate_type: Option<&str>, lasts: Option<Duration>) -> PauseRequest {
    PauseRequest {
        aggregate_type: aggregate_type.map(str::to_owned),
        reason: "the consumer is overrun".to_owned(),
        by: "alice".to_owned(),
        lasts,
    }
}

async fn pause<F: StoreFixture>(fixture: &F, aggregate_type: Option<&str>, lasts: Option<Duration>) {
    store(fixture).pause(&request(aggregate_type, lasts)).await;
}

async fn finish<F: StoreFixture>(fixture: &F) {
    for _ in 0..1_000 {
        let more = store(fixture).finish_pauses().await;
        if !more {
            return;
        }
    }
    panic!("finishing pauses does not end");
}

/// Settles rows as a relay does during a pause: the first message of each aggregate is held by the
/// pause, later messages wait.
async fn hold<F: StoreFixture>(fixture: &F, leases: &[Lease], rows: &[FetchedRow]) {
    let mut met = std::collections::HashSet::new();
    for row in rows {
        let verdict = match row.sequenced && !met.insert(&row.aggregate) {
            true => Verdict::Waits,
            false => Verdict::Paused,
        };
        settled(fixture, leases, std::slice::from_ref(row), verdict).await;
    }
}

/// After a pause, the paused messages are fetched in order, without counted failures.
pub async fn paused_messages_wait_until_the_pause_is_finished<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b", "a"]).await;
    commit_all(fixture, [Probe::sampled("c", 1)]).await;
    let (_, leases) = lease_all(fixture).await;
    pause(fixture, Some(AGGREGATE), None).await;
    let rows = fetch(fixture, &leases, ALL).await;
    hold(fixture, &leases, &rows).await;
    commit_each(fixture, &["b"]).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    let looked = store(fixture).fetch(pending(&leases)).await;
    assert!(
        looked.due.is_empty() && looked.waits.is_empty(),
        "the scan returns {looked:?} again"
    );
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert!(!store(fixture).finish_pauses().await);
    assert_eq!(fetch_waiting(fixture, &leases).await, [], "the pause stands");
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.pending, backlog.waiting), (5, 5));

    assert!(store(fixture).unpause(Some(AGGREGATE)).await);
    finish(fixture).await;
    assert_eq!(store(fixture).pauses().await, []);
    let mut due = fetch_waiting(fixture, &leases).await;
    let mut came = 0;
    while !due.is_empty() {
        came += due.len();
        assert!(
            due.iter().all(|row| (row.attempts, row.failures) == (0, 0)),
            "{due:?}"
        );
        settled(fixture, &leases, &due, published()).await;
        due = fetch_waiting(fixture, &leases).await;
    }
    assert_eq!(came, 5);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.pending, backlog.dead_letters), (0, 0));
}

/// If a settlement names an ended or different pause, the store holds the message only briefly.
pub async fn an_inactive_pause_holds_no_message<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a"]).await;
    commit_all(fixture, [Probe::sampled("b", 1)]).await;
    let (_, leases) = lease_all(fixture).await;
    pause(fixture, Some("another"), None).await;
    pause(fixture, Some(AGGREGATE), None).await;
    store(fixture).unpause(Some(AGGREGATE)).await;
    let rows = fetch(fixture, &leases, ALL).await;
    hold(fixture, &leases, &rows).await;
    finish(fixture).await;
    let mut met = until_something_is_due(fixture, &leases).await;
    while met.len() < 3 {
        met.extend(until_something_is_due(fixture, &leases).await);
        met.sort_by_key(|row| row.row_id);
        met.dedup_by_key(|row| row.row_id);
    }
    hold(fixture, &leases, &met).await;
    let again = until_something_is_due(fixture, &leases).await;
    assert!(!again.is_empty());
    let others = store(fixture).pauses().await;
    assert_eq!(
        (others.len(), others[0].aggregate_type.as_deref()),
        (1, Some("another"))
    );
}

/// The list begins with the pause of all types. A new pause replaces an earlier pause of the same
/// scope.
pub async fn pauses_are_listed_and_replaced<F: StoreFixture>(fixture: &F) {
    assert_eq!(store(fixture).pauses().await, []);
    assert!(!store(fixture).unpause(None).await, "there is none");
    pause(fixture, Some("order"), None).await;
    pause(fixture, Some("Order"), Some(LONG)).await;
    pause(fixture, None, None).await;
    let again = PauseRequest {
        reason: "another\0reason".to_owned() + &"x".repeat(2_000),
        by: "bob".to_owned(),
        ..request(Some("order"), Some(LONG))
    };
    store(fixture).pause(&again).await;
    let listed = store(fixture).pauses().await;
    let scopes: Vec<_> = listed
        .iter()
        .map(|pause| pause.aggregate_type.as_deref())
        .collect();
    assert_eq!(scopes, [None, Some("Order"), Some("order")]);
    assert!(listed.iter().all(Pause::stands));
    assert_eq!(
        (&*listed[0].reason, &*listed[0].by),
        ("the consumer is overrun", "alice")
    );
    assert_eq!(listed[0].ends_in, None);
    assert!(listed[2].reason.starts_with("anotherreason") && listed[2].by == "bob");
    assert!(is_left_of(LONG, listed[2].ends_in), "{:?}", listed[2].ends_in);
    let ago = fixture.now().await - listed[2].since;
    assert!(ago.abs() < LONG, "{ago}");
    assert!(store(fixture).unpause(Some("order")).await);
    assert!(!store(fixture).unpause(Some("order")).await, "it has ended");
    assert!(!store(fixture).unpause(Some("nothing")).await);
    finish(fixture).await;
    assert_eq!(
        store(fixture).pauses().await.len(),
        2,
        "the other pauses are active"
    );
    assert!(store(fixture).unpause(None).await);
    finish(fixture).await;
    assert_eq!(store(fixture).pauses().await.len(), 1);
}

/// A pause with a duration expires by the store's clock.
pub async fn a_pause_with_a_duration_expires<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a"]).await;
    let (_, leases) = lease_all(fixture).await;
    pause(fixture, Some(AGGREGATE), Some(SHORT)).await;
    let rows = fetch(fixture, &leases, ALL).await;
    hold(fixture, &leases, &rows).await;
    let mut due = Vec::new();
    for _ in 0..200 {
        finish(fixture).await;
        due = fetch_waiting(fixture, &leases).await;
        if !due.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(keys(&due), "a1 a2");
    finish(fixture).await;
    assert_eq!(store(fixture).pauses().await, []);
}

/// A dead letter retried during a pause waits.
pub async fn a_halted_aggregate_stays_halted_under_a_pause<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "a", "b"]).await;
    settled(fixture, &leases, &first(&rows, "a"), dead(true)).await;
    pause(fixture, Some(AGGREGATE), None).await;
    settled(fixture, &leases, &rows[1..2], Verdict::Paused).await;
    settled(fixture, &leases, &only(&rows, "b"), Verdict::Paused).await;
    assert_eq!(store(fixture).backlog().await.halted_aggregates, 1);
    store(fixture).unpause(Some(AGGREGATE)).await;
    finish(fixture).await;
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "b1");
    let block = store(fixture).block(&aggregate("a")).await.expect("a is blocked");
    assert!(block.halted_by.is_some(), "the halt is left");

    pause(fixture, Some(AGGREGATE), None).await;
    assert_eq!(store(fixture).retry(&Selection::dead_letters()).await, 1);
    let retried = until_something_is_due(fixture, &leases).await;
    hold(fixture, &leases, &of(&retried, "a")).await;
    store(fixture).unpause(Some(AGGREGATE)).await;
    finish(fixture).await;
    let due = fetch_waiting(fixture, &leases).await;
    assert!(sorted_keys(&due).starts_with("a1 a2"), "{}", keys(&due));
}

/// A delayed message keeps its time after a pause.
pub async fn a_delayed_message_keeps_its_time_after_a_pause<F: StoreFixture>(fixture: &F) {
    commit_delayed(fixture, Probe::noted("a", 1), LONG).await;
    commit_delayed(fixture, Probe::sampled("b", 2), LONG).await;
    commit_each(fixture, &["c"]).await;
    let (_, leases) = lease_all(fixture).await;
    pause(fixture, Some(AGGREGATE), None).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), "c1");
    hold(fixture, &leases, &rows).await;
    store(fixture).unpause(Some(AGGREGATE)).await;
    finish(fixture).await;
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "c1");
    assert!(!shown(fixture, &rows[0]).await.halts);
    let listed = list(fixture, &Selection::all()).await;
    assert_eq!(listed.len(), 3);
    for message in listed {
        if message.aggregate.id != "c" {
            let found = store(fixture).find(message.id).await;
            let delayed_for = found.and_then(|found| found.delayed_for);
            assert!(is_left_of(LONG, delayed_for), "{delayed_for:?}");
        }
    }
}

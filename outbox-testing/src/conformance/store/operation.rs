//! Promises on operations that pause publishing, and on purges: written down with what they change, and not done twice.

use std::num::NonZeroU64;

use super::StoreFixture;
use super::support::*;

/// Some clocks tick in whole seconds.
const OLD_AFTER: Duration = Duration::from_millis(2_100);

fn operation(kind: OperationKind, scope: OperationScope) -> Operation {
    Operation::new(kind, scope, Intent::of("ann").because("INC-1"))
}

/// What an operation that is written down says it has changed, and whether it has ended.
async fn outcome<F: StoreFixture>(fixture: &F, id: OperationId) -> Option<(u64, bool)> {
    let written = store(fixture).operation(id).await;
    written.map(|written| (written.changed, written.is_finished()))
}

async fn pause<F: StoreFixture>(fixture: &F, reason: &str, operation: &Operation) -> bool {
    let request = PauseRequest {
        aggregate_type: Some("order".to_owned()),
        reason: reason.to_owned(),
        by: "ann".to_owned(),
        lasts: None,
    };
    store(fixture).pause_as(&request, operation).await
}

/// The reasons of the pauses that stand.
async fn reasons<F: StoreFixture>(fixture: &F) -> Vec<String> {
    let pauses = store(fixture).pauses().await;
    let standing = pauses.into_iter().filter(Pause::stands);
    standing.map(|pause| pause.reason).collect()
}

/// A pause and its end are written down with who and why; what changes nothing leaves no trace.
pub async fn pausing_and_unpausing_are_written_down<F: StoreFixture>(fixture: &F) {
    let of_type = || OperationScope::names(["order"]);
    let begin = operation(OperationKind::Pause, of_type());
    assert!(pause(fixture, "overrun", &begin).await);
    assert_eq!(outcome(fixture, begin.id).await, Some((1, true)));
    let found = written(fixture, begin.id).await;
    assert_eq!((found.intent, found.scope), (begin.intent, begin.scope));
    assert_eq!(reasons(fixture).await, ["overrun"]);

    let of_all = operation(OperationKind::Unpause, OperationScope::default());
    assert!(
        !store(fixture).unpause_as(None, &of_all).await,
        "all messages are not paused"
    );
    assert_eq!(outcome(fixture, of_all.id).await, None);
    let end = operation(OperationKind::Unpause, of_type());
    assert!(store(fixture).unpause_as(Some("order"), &end).await);
    assert_eq!(outcome(fixture, end.id).await, Some((1, true)));
    let again = operation(OperationKind::Unpause, of_type());
    assert!(!store(fixture).unpause_as(Some("order"), &again).await);
    assert_eq!(outcome(fixture, again.id).await, None);
    assert_eq!(reasons(fixture).await, Vec::<String>::new());
}

/// A pause, or the end of one, whose answer was lost can be asked for again: what came after it stays.
pub async fn a_repeated_pause_changes_nothing<F: StoreFixture>(fixture: &F) {
    let of_type = || OperationScope::names(["order"]);
    let begin = operation(OperationKind::Pause, of_type());
    assert!(pause(fixture, "overrun", &begin).await);
    let replaced = operation(OperationKind::Pause, of_type());
    assert!(pause(fixture, "moving", &replaced).await);
    assert!(!pause(fixture, "overrun", &begin).await);
    assert_eq!(reasons(fixture).await, ["moving"]);

    let end = operation(OperationKind::Unpause, of_type());
    assert!(store(fixture).unpause_as(Some("order"), &end).await);
    assert!(!pause(fixture, "overrun", &begin).await);
    assert_eq!(reasons(fixture).await, Vec::<String>::new());
    assert!(pause(fixture, "late", &operation(OperationKind::Pause, of_type())).await);
    assert!(!store(fixture).unpause_as(Some("order"), &end).await);
    assert_eq!(reasons(fixture).await, ["late"]);
}

/// Commits a message of each aggregate and publishes them.
async fn publish_each<F: StoreFixture>(fixture: &F, ids: &[&str]) {
    commit_each(fixture, ids).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &rows, published()).await;
    store(fixture).leave(owner).await;
}

async fn advance<F: StoreFixture>(
    fixture: &F,
    operation: &Operation,
    at_most: u32,
) -> Result<Operation, StoreError> {
    fixture.store().advance(operation, limit(at_most)).await
}

async fn carry_out<F: StoreFixture>(fixture: &F, operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    for _ in 0..30 {
        operation = advance(fixture, &operation, 3).await.expect("advance answers");
        if operation.is_finished() {
            return operation;
        }
    }
    panic!("the purge does not come to an end: {operation:?}");
}

async fn left<F: StoreFixture>(fixture: &F) -> Vec<String> {
    let rows = fixture.rows().await.into_iter();
    let mut left: Vec<String> = rows.map(|row| row.aggregate.id).collect();
    left.sort();
    left
}

/// A purge deletes what was published before its time, and nothing else; it is written down with the number, and not if it finds nothing.
pub async fn a_purge_is_written_down_with_what_it_deletes<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["dead", "old", "pending", "waiting"]).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &only(&rows, "old"), published()).await;
    settled(fixture, &leases, &only(&rows, "waiting"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "dead"), dead(true)).await;
    store(fixture).leave(owner).await;
    tokio::time::sleep(OLD_AFTER).await;
    let before = fixture.now().await;
    tokio::time::sleep(OLD_AFTER).await;
    // Recorded before, published after: its retention counts from its publishing.
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &only(&rows, "pending"), published()).await;
    store(fixture).leave(owner).await;
    commit_each(fixture, &["new"]).await;

    let scope = OperationScope::published_before(before);
    let purge = operation(OperationKind::Purge, scope.clone());
    let done = carry_out(fixture, &purge).await;
    assert_eq!((done.changed, done.is_finished()), (1, true));
    assert_eq!(left(fixture).await, ["dead", "new", "pending", "waiting"]);
    assert_eq!(store(fixture).operation(purge.id).await.as_ref(), Some(&done));
    assert_eq!(carry_out(fixture, &purge).await, done);
    let nothing = operation(OperationKind::Purge, scope);
    assert_eq!(carry_out(fixture, &nothing).await.changed, 0);
    assert_eq!(outcome(fixture, nothing.id).await, None);
}

/// A purge with another scope than what is published and old is refused, and deletes nothing.
pub async fn a_purge_of_another_scope_is_refused<F: StoreFixture>(fixture: &F) {
    publish_each(fixture, &["a", "b"]).await;
    tokio::time::sleep(OLD_AFTER).await;
    let now = fixture.now().await;
    let all = OperationScope::default();
    let dead = OperationScope::messages(Selection::dead_letters().recorded_until(now));
    let mut narrow = OperationScope::published_before(now);
    narrow.selection.aggregate_id = Some("a".to_owned());
    for scope in [all, dead, narrow] {
        let purge = operation(OperationKind::Purge, scope);
        let refused = advance(fixture, &purge, ALL).await;
        assert!(matches!(refused, Err(StoreError::Setup { .. })), "{refused:?}");
        assert_eq!(outcome(fixture, purge.id).await, None);
    }
    assert_eq!(left(fixture).await, ["a", "b"]);
}

/// A purge takes no more than its bound, goes on where it broke off, and two callers of it count each message once.
pub async fn a_purge_goes_on_and_keeps_its_bound<F: StoreFixture>(fixture: &F) {
    let ids: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    publish_each(fixture, &ids).await;
    tokio::time::sleep(OLD_AFTER).await;
    let scope = OperationScope::published_before(fixture.now().await);
    let bounded = scope.clone().first(NonZeroU64::new(7));
    let purge = operation(OperationKind::Purge, bounded);
    let begun = advance(fixture, &purge, 2).await.expect("advance answers");
    assert_eq!((begun.changed, begun.is_finished()), (2, false));
    assert_eq!(left(fixture).await.len(), 18);
    let done = carry_out(fixture, &purge).await;
    assert_eq!((done.changed, left(fixture).await.len()), (7, 13));
    assert_eq!(outcome(fixture, purge.id).await, Some((7, true)));

    let rest = operation(OperationKind::Purge, scope);
    let (one, other) = tokio::join!(carry_out(fixture, &rest), carry_out(fixture, &rest));
    assert_eq!((one.changed, other.changed), (13, 13));
    assert_eq!(left(fixture).await, Vec::<String>::new());
}

//! Rules for pause and unpause operations.

use super::StoreFixture;
use super::support::*;

fn operation(kind: OperationKind, scope: OperationScope) -> Operation {
    Operation::new(kind, scope, Intent::of("ann").because("INC-1"))
}

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

async fn reasons<F: StoreFixture>(fixture: &F) -> Vec<String> {
    let pauses = store(fixture).pauses().await;
    let standing = pauses.into_iter().filter(Pause::stands);
    standing.map(|pause| pause.reason).collect()
}

/// Pause and unpause are recorded if they change something.
pub async fn pause_and_unpause_are_recorded<F: StoreFixture>(fixture: &F) {
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

/// A repeated pause or unpause operation has no effect, also on pauses that began later.
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

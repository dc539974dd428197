//! Rules for operations: the store records an operation with its changes, and a caller can resume
//! it.

use std::num::{NonZeroU32, NonZeroU64};

use super::StoreFixture;
use super::support::*;

fn operation(kind: OperationKind, selection: Selection) -> Operation {
    let intent = Intent::of("ann").because("INC-1");
    Operation::new(kind, OperationScope::messages(selection), intent)
}

async fn advance<F: StoreFixture>(fixture: &F, operation: &Operation, at_most: u32) -> Operation {
    store(fixture).advance(operation, limit(at_most)).await
}

async fn finish<F: StoreFixture>(fixture: &F, operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    for _ in 0..20 {
        operation = advance(fixture, &operation, 2).await;
        if operation.is_finished() {
            return operation;
        }
    }
    panic!("the operation never ends: {operation:?}");
}

/// An operation without changes is not recorded.
pub async fn an_operation_is_recorded_with_its_changes<F: StoreFixture>(fixture: &F) {
    let (_, row) = with_dead(fixture, &["a", "a", "b"], true).await;
    let retry = operation(OperationKind::Retry, Selection::id(id_of(&row)));
    assert_eq!(store(fixture).operation(retry.id).await, None);
    let before = fixture.now().await;
    let done = advance(fixture, &retry, ALL).await;
    assert!(done.is_finished());
    assert_eq!((done.changed, done.position), (1, Some(row.row_id)));
    assert_ne!(status_of(fixture, &row).await, MessageStatus::Dead);
    assert_eq!(store(fixture).operation(retry.id).await.as_ref(), Some(&done));
    assert_eq!((&done.kind, &done.intent), (&retry.kind, &retry.intent));
    assert_eq!(done.scope, retry.scope);
    // Some clocks have a resolution of one second.
    let started = done.started_at.expect("the operation has a start time");
    assert!(started >= before - Duration::from_secs(1) && done.finished_at >= done.started_at);

    let again = operation(OperationKind::Retry, Selection::id(id_of(&row)));
    let done = advance(fixture, &again, ALL).await;
    assert_eq!((done.is_finished(), done.changed), (true, 0));
    assert_eq!(store(fixture).operation(again.id).await, None);
}

/// Another caller can continue an operation at its stored position, also before its first change.
pub async fn an_operation_continues_at_its_position<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d", "e"]).await;
    settled(fixture, &leases, &rows, published()).await;
    let replay = operation(OperationKind::Replay, Selection::all());
    let begun = advance(fixture, &replay, 2).await;
    assert_eq!((begun.is_finished(), begun.changed), (false, 2));
    assert_eq!(begun.position, Some(rows[1].row_id));
    assert_eq!(store(fixture).operation(replay.id).await, Some(begun));
    let again = advance(fixture, &replay, 1).await;
    assert_eq!(again.changed, 3);
    let done = finish(fixture, &again).await;
    assert_eq!(done.changed, 5);
    assert_eq!(advance(fixture, &replay, ALL).await, done);
    let copies = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&copies), "a1 b1 c1 d1 e1");
}

/// An operation never selects its own copies and retried messages again.
pub async fn an_operation_skips_its_own_messages<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c"]).await;
    settled(fixture, &leases, &rows, published()).await;
    let replay = operation(OperationKind::Replay, Selection::all());
    advance(fixture, &replay, 2).await;
    let copies = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &copies[..1], published()).await;
    settled(fixture, &leases, &copies[1..], dead(false)).await;
    assert_eq!(finish(fixture, &replay).await.changed, 3);
    assert_eq!(list(fixture, &Selection::all()).await.len(), 6);

    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &rows, dead(false)).await;
    let retry = operation(OperationKind::Retry, Selection::dead_letters());
    advance(fixture, &retry, 1).await;
    let retried = fetch(fixture, &leases, ALL).await;
    assert_eq!(retried.len(), 1);
    settled(fixture, &leases, &retried, dead(false)).await;
    assert_eq!(finish(fixture, &retry).await.changed, 2);
    assert_eq!(status_of(fixture, &retried[0]).await, MessageStatus::Dead);
}

/// If two callers advance one operation, each message changes once.
pub async fn two_callers_of_an_operation_take_each_message_once<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d", "e", "f", "g"]).await;
    settled(fixture, &leases, &rows, published()).await;
    let replay = operation(OperationKind::Replay, Selection::all());
    let (one, other) = tokio::join!(finish(fixture, &replay), finish(fixture, &replay));
    assert_eq!((one.changed, other.changed), (7, 7));
    let copies = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&copies), "a1 b1 c1 d1 e1 f1 g1");
}

/// Two operations that select the same messages change and count each message once in total.
pub async fn two_operations_count_each_message_once<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d", "e"]).await;
    for kind in [OperationKind::Retry, OperationKind::Skip] {
        settled(fixture, &leases, &rows, dead(true)).await;
        let new = || operation(kind.clone(), Selection::dead_letters());
        let (one, other) = (new(), new());
        let (one, other) = tokio::join!(finish(fixture, &one), finish(fixture, &other));
        assert_eq!(one.changed + other.changed, 5, "{kind:?}");
    }
}

/// An operation stops at its limit.
pub async fn a_bounded_operation_takes_the_first_messages<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d"]).await;
    settled(fixture, &leases, &rows, dead(false)).await;
    let mut retry = operation(OperationKind::Retry, Selection::dead_letters());
    retry.scope.first = NonZeroU64::new(3);
    let done = finish(fixture, &retry).await;
    assert_eq!((done.changed, done.left()), (3, Some(0)));
    let left = list(fixture, &Selection::dead_letters()).await;
    let left: Vec<_> = left.iter().map(|message| message.row_id).collect();
    assert_eq!(left, [rows[3].row_id]);
    assert_eq!(advance(fixture, &retry, ALL).await, done);
}

/// Resume and forget are recorded if they change something.
pub async fn resume_and_forget_are_recorded<F: StoreFixture>(fixture: &F) {
    block_each(fixture, &["a", "b"], LONG).await;
    let new = |kind, of: &Aggregate| {
        let scope = OperationScope::aggregates(std::slice::from_ref(of));
        Operation::new(kind, scope, Intent::of("ann"))
    };
    let (a, free) = (aggregate("a"), aggregate("free"));
    for (of, resumes) in [(&a, true), (&free, false)] {
        let operation = new(OperationKind::Resume, of);
        let resumed = store(fixture).resume_as(of, &operation).await;
        assert_eq!(resumed, resumes);
        let written = store(fixture).operation(operation.id).await;
        let outcome = written.map(|written| (written.changed, written.is_finished()));
        assert_eq!(outcome, resumes.then_some((1, true)));
    }
    assert!(!store(fixture).resume(&free).await);

    let gone = aggregate("x");
    let forget = new(OperationKind::Forget, &a);
    let forgotten = store(fixture).forget_as(std::slice::from_ref(&a), &forget).await;
    assert_eq!(forgotten.left, [a]);
    assert_eq!(
        store(fixture).operation(forget.id).await,
        None,
        "nothing was forgotten"
    );
    let forget = new(OperationKind::Forget, &gone);
    let forgotten = store(fixture)
        .forget_as(std::slice::from_ref(&gone), &forget)
        .await;
    assert_eq!(forgotten.left, []);
    let written = written(fixture, forget.id).await;
    assert_eq!(
        (written.changed, written.scope.names),
        (0, vec!["probe/x".to_owned()])
    );
}

/// An operation with external effects is recorded as running until the caller finishes it.
pub async fn an_operation_with_external_effects_is_recorded<F: StoreFixture>(fixture: &F) {
    let reconcile = operation(OperationKind::Reconcile, Selection::all());
    for _ in 0..2 {
        store(fixture).write_down(&reconcile).await;
    }
    let begun = written(fixture, reconcile.id).await;
    assert_eq!((begun.is_finished(), begun.changed), (false, 0));
    for changed in [7, 8] {
        store(fixture).finish(reconcile.id, changed).await;
    }
    let ended = written(fixture, reconcile.id).await;
    assert_eq!((ended.is_finished(), ended.changed), (true, 7));
    assert_eq!(ended.started_at, begun.started_at);
    let refused = fixture.store().advance(&reconcile, NonZeroU32::MIN).await;
    refused.expect_err("the operation takes no messages");
}

/// Operations are listed newest first, with filters.
pub async fn operations_are_listed_newest_first<F: StoreFixture>(fixture: &F) {
    let mut ids = Vec::new();
    for (actor, kind) in [
        ("ann", OperationKind::Reconcile),
        ("bob", OperationKind::Reconcile),
        ("ann", OperationKind::Other("strange".to_owned())),
    ] {
        let one = Operation::new(kind, OperationScope::default(), Intent::of(actor));
        store(fixture).write_down(&one).await;
        ids.push(one.id);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ids.reverse();
    let listed = |filter: OperationFilter, at_most: u32| async move {
        let listed = store(fixture)
            .operations(&filter, limit(at_most))
            .await
            .into_iter();
        listed.map(|operation| operation.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(OperationFilter::default(), 10).await, ids);
    assert_eq!(listed(OperationFilter::default(), 2).await, ids[..2]);
    let mut filter = OperationFilter::default();
    filter.before = Some(ids[0]);
    assert_eq!(listed(filter.clone(), 10).await, ids[1..]);
    filter.actor = Some("ann".to_owned());
    assert_eq!(listed(filter, 10).await, ids[2..]);
    let mut filter = OperationFilter::default();
    filter.kind = Some(OperationKind::Reconcile);
    assert_eq!(listed(filter, 10).await, ids[1..]);
    let mut filter = OperationFilter::default();
    filter.since = written(fixture, ids[1]).await.started_at;
    assert_eq!(listed(filter, 10).await, ids[..2]);
}

/// `messages_of` returns the messages that an operation retried or skipped, or its copies.
pub async fn the_messages_of_an_operation_are_found<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d"]).await;
    settled(fixture, &leases, &rows[..3], dead(true)).await;
    settled(fixture, &leases, &rows[3..], dead(false)).await;
    let of = |id| Selection::dead_letters().aggregate(&aggregate(id));
    let retry = operation(OperationKind::Retry, of("a"));
    finish(fixture, &retry).await;
    let skip = operation(OperationKind::Skip, Selection::dead_letters());
    finish(fixture, &skip).await;
    let replay = operation(OperationKind::Replay, of("b"));
    finish(fixture, &replay).await;
    let found = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &only(&found, "a"), published()).await;
    let of = |id: OperationId| async move { store(fixture).messages_of(id).await };
    let retried = of(retry.id).await;
    assert_eq!(
        (retried.named, retried.messages),
        (1, vec![shown(fixture, &rows[0]).await])
    );
    let skipped = of(skip.id).await;
    let expected = vec![shown(fixture, &rows[1]).await, shown(fixture, &rows[2]).await];
    assert_eq!((skipped.named, skipped.messages), (2, expected));
    let copies = of(replay.id).await;
    let expected = only(&found, "b");
    let expected: Vec<_> = expected.iter().map(id_of).collect();
    let ids: Vec<_> = copies.messages.iter().map(|copy| copy.id).collect();
    assert_eq!((copies.named, ids), (1, expected));
    assert_eq!(of(OperationId::fresh()).await.named, 0);
}

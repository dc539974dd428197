//! Operations that are interrupted, concurrent, rolled back or rejected.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{
    Intent, MessageStatus, Operation, OperationKind, OperationScope, OutboxAudit, OutboxStore, PauseRequest,
    Selection, SetupKind, StoreError,
};
use outbox_sea_orm::SqlStore;
use outbox_testing::conformance::probe::Probe;

use crate::operators::is_busy;
use crate::support::TestDb;

crate::on_every_backend!(
    killed_replay_continues_without_second_copies,
    an_operation_is_rolled_back_with_its_change,
    missing_operations_table_rejects_changes,
);

const SOON: Duration = Duration::from_secs(60);

fn operation(kind: OperationKind, selection: Selection) -> Operation {
    let intent = Intent::of("ann").because("INC-1");
    Operation::new(kind, OperationScope::messages(selection), intent)
}

async fn with_status(test: &TestDb, count: u64, status: u8) {
    let mut recorded = 0;
    while recorded < count {
        let some = (recorded..count.min(recorded + 1_000)).map(|n| Probe::noted(n.to_string(), n));
        test.record(some.collect::<Vec<_>>()).await.unwrap();
        recorded += 1_000;
    }
    test.execute(&format!("UPDATE {} SET status = {status}", test.messages()))
        .await;
}

async fn finished(store: &SqlStore, operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    let mut refused = 0;
    while !operation.is_finished() {
        match store.advance(&operation, NonZeroU32::new(1_500).unwrap()).await {
            Ok(advanced) => operation = advanced,
            Err(error) => {
                refused += 1;
                assert!(is_busy(&error) && refused <= 20, "{error:?}");
            }
        }
    }
    operation
}

async fn killed_replay_continues_without_second_copies(test: TestDb) {
    with_status(&test, 5_000, 1).await;
    let replay = operation(
        OperationKind::Replay,
        Selection::all().status(MessageStatus::Published),
    );
    let (store, begun) = (test.store(), replay.clone());
    let killed = tokio::spawn(async move { store.advance(&begun, NonZeroU32::MAX).await });
    let store = test.store();
    let has_begun = async {
        while store.operation(replay.id).await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, has_begun)
        .await
        .expect("the first batch");
    killed.abort();
    let (one, other) = (test.store(), test.store());
    let (one, other) = tokio::join!(finished(&one, &replay), finished(&other, &replay));
    assert_eq!((one.changed, other.changed), (5_000, 5_000));
    let messages = test.messages();
    let copies = format!("SELECT count(*) FROM {messages} WHERE event_id IS NOT NULL");
    assert_eq!(test.int(&copies).await, 5_000);
    let copied = format!("SELECT count(DISTINCT event_id) FROM {messages} WHERE event_id IS NOT NULL");
    assert_eq!(test.int(&copied).await, 5_000);
    assert_eq!(store.messages_of(replay.id).await.unwrap().named, 1_000);
}

async fn an_operation_is_rolled_back_with_its_change(test: TestDb) {
    with_status(&test, 3, 2).await;
    let retry = operation(OperationKind::Retry, Selection::dead_letters());
    let hidden = test.names.table(test.sql_backend(), "hidden_blocks");
    let rename = async |table: &str, name| {
        let name = test.names.unqualified(name);
        test.execute(&format!("ALTER TABLE {table} RENAME TO {name}"))
            .await;
    };
    rename(&test.blocks(), "hidden_blocks").await;
    let store = test.store();
    store.advance(&retry, NonZeroU32::MAX).await.unwrap_err();
    assert_eq!(store.operation(retry.id).await.unwrap(), None);
    rename(&hidden, "outbox_blocks").await;
    assert_eq!(store.advance(&retry, NonZeroU32::MAX).await.unwrap().changed, 3);
    assert!(store.operation(retry.id).await.unwrap().is_some());
}

async fn missing_operations_table_rejects_changes(test: TestDb) {
    with_status(&test, 1, 2).await;
    let table = test.names.table(test.sql_backend(), "outbox_operations");
    test.execute(&format!("DROP TABLE {table}")).await;
    let store = test.store();
    for kind in [OperationKind::Retry, OperationKind::Replay] {
        let refused = store
            .advance(&operation(kind, Selection::all()), NonZeroU32::MAX)
            .await;
        match refused.unwrap_err() {
            StoreError::Setup(problem) => assert_eq!(problem.kind, SetupKind::Tables),
            other => panic!("{other:?}"),
        }
    }
    let dead = format!("SELECT count(*) FROM {} WHERE status = 2", test.messages());
    assert_eq!(test.int(&dead).await, 1, "nothing is half done");
    assert_eq!(
        test.int(&format!("SELECT count(*) FROM {}", test.messages()))
            .await,
        1
    );
    let pause = operation(OperationKind::Pause, Selection::all());
    store.pause_as(&everything(), &pause).await.unwrap_err();
    store.unpause_as(None, &pause).await.unwrap_err();
    assert_eq!(store.pauses().await.unwrap(), []);
}

fn everything() -> PauseRequest {
    PauseRequest {
        aggregate_type: None,
        reason: "INC-1".to_owned(),
        by: "ann".to_owned(),
        lasts: None,
    }
}

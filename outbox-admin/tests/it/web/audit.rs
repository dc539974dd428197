//! The audit on pages: what an operation did is said in the words of what it did.

use outbox_admin::web::Role;
use outbox_core::{Intent, Operation, OperationKind, OperationScope, OutboxAudit as _, Selection};
use outbox_testing::MemoryStore;

use super::{get, pages};

/// An operation that has changed so many, or has not ended.
async fn write_down(store: &MemoryStore, kind: OperationKind, changed: Option<u64>) -> String {
    let scope = match kind {
        OperationKind::Migrate => OperationScope::names(["outbox_0001_create_tables".to_owned()]),
        _ => OperationScope::messages(Selection::all()),
    };
    let operation = Operation::new(kind, scope, Intent::of("ann"));
    store.write_down(&operation).await.expect("written down");
    if let Some(changed) = changed {
        store.finish(operation.id, changed).await.expect("ended");
    }
    operation.id.to_string()
}

/// A purge had "changed" messages, and so had a migration.
#[tokio::test(start_paused = true)]
async fn a_purge_is_said_to_have_deleted_and_a_migration_to_have_applied() {
    use OperationKind as Kind;

    let store = MemoryStore::new();
    let viewers = pages(&store, Role::Viewer);
    for (kind, changed, sentence, how_many) in [
        (
            Kind::Purge,
            Some(12),
            "12 published messages were deleted.",
            "12 deleted",
        ),
        (
            Kind::PurgeInbox,
            Some(1),
            "1 record of an inbox was deleted.",
            "1 deleted",
        ),
        (Kind::Migrate, Some(3), "3 migrations were applied.", "3 applied"),
        (Kind::Migrate, Some(0), "0 migrations were applied.", "0 applied"),
        (
            Kind::Migrate,
            None,
            "migrate: how much of it was done is not known.",
            "–",
        ),
        (
            Kind::Reconcile,
            Some(2),
            "2 messages that the stream had lost were published again.",
            "2 published",
        ),
        (Kind::Replay, Some(4), "4 copies were recorded.", "4 recorded"),
        (Kind::InitLog, Some(0), "The log was set up already.", "0 changed"),
        (Kind::Pause, Some(1), "Publishing was paused.", "1 changed"),
    ] {
        let id = write_down(&store, kind.clone(), changed).await;
        let page = get(&viewers, &format!("/operations/{id}")).await.expect(200).body;
        let fact = format!("<dt>How many</dt><dd>{how_many}</dd>");
        assert!(page.contains(sentence) && page.contains(&fact), "{kind}: {page}");
        let list = get(&viewers, "/audit").await.expect(200).body;
        assert!(list.contains(&format!("<td>{how_many}</td>")), "{kind}: {list}");
        let json = get(&viewers, &format!("/operations/{id}.json"))
            .await
            .expect(200)
            .json();
        assert_eq!(json["changed"], changed.unwrap_or_default());
    }
    let id = write_down(&store, Kind::Migrate, Some(3)).await;
    let json = get(&viewers, &format!("/operations/{id}.json"))
        .await
        .expect(200)
        .json();
    assert_eq!(json["outcome"], "3 migrations applied");
}

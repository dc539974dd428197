//! Recorded operations, their results, and continuing an interrupted operation.

use std::num::{NonZeroU32, NonZeroU64};

use outbox_admin::{Change, Command, carry_out, list_operations, preview, preview_rest, show_operation};
use outbox_core::{Intent, OperationFilter, OutboxAudit, RelayHealth, Selection};
use outbox_testing::MemoryStore;

use crate::plant::{all, dead, noted, published, relay, settle};

#[tokio::test(start_paused = true)]
async fn operation_has_the_state_of_its_messages() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let ids = ["a", "b", "c"].map(|id| noted(&store, id));
    for id in ids {
        settle(&store, &leases, id, dead(true)).await;
    }
    let intent = Intent::of("ann").because("INC-7");
    let retry = Change::Retry.operation(&Selection::all(), None, intent);
    let done = carry_out(&store, &retry).await.expect("done");
    assert_eq!((done.changed, done.id), (3, retry.id));
    settle(&store, &leases, ids[0], published(true)).await;
    settle(&store, &leases, ids[1], dead(true)).await;
    let detail = show_operation(&store, retry.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!((detail.named, detail.names_all), (3, true));
    assert_eq!(
        (detail.published, detail.pending, detail.dead, detail.gone),
        (1, 1, 1, 0)
    );
    assert_eq!(detail.errors[0].messages, 1);
    assert_eq!(detail.outcome, "1 published, 1 pending, 1 failed again");
    assert_eq!(detail.next, Some(Command::from("outbox why").arg(ids[1])));
    let listed = list_operations(&store, &OperationFilter::default(), NonZeroU32::MIN).await;
    let listed = listed.expect("listed");
    assert_eq!(listed, [detail.row]);
    assert_eq!(
        (listed[0].actor.as_str(), listed[0].reason.as_deref()),
        ("ann", Some("INC-7"))
    );
    assert_eq!(listed[0].scope, serde_json::json!({ "status": "dead" }));
}

#[tokio::test(start_paused = true)]
async fn interrupted_operation_is_previewed_and_continued() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    for id in ["a", "b", "c"] {
        let id = noted(&store, id);
        settle(&store, &leases, id, published(true)).await;
    }
    let first = NonZeroU64::new(2);
    let said = preview(&store, Change::Replay, &Selection::all(), first)
        .await
        .expect("previewed");
    assert_eq!((said.messages, said.is_complete), (2, true));
    let replay = Change::Replay.operation(&Selection::all(), None, Intent::of("ann"));
    let begun = store.advance(&replay, NonZeroU32::MIN).await.expect("begun");
    let detail = show_operation(&store, replay.id)
        .await
        .expect("read")
        .expect("there");
    let next = Command::from("outbox replay").option("--operation", replay.id);
    assert_eq!(detail.next, Some(next));
    let rest = preview_rest(&store, &begun)
        .await
        .expect("previewed")
        .expect("a change");
    assert_eq!(rest.messages, 2);
    let done = carry_out(&store, &begun).await.expect("done");
    assert_eq!(done.changed, 3);
    assert_eq!(all(&store).await.len(), 6);
    let ended = store.operation(replay.id).await.expect("read").expect("there");
    let rest = preview_rest(&store, &ended)
        .await
        .expect("previewed")
        .expect("a change");
    assert_eq!(rest.messages, 0);
}

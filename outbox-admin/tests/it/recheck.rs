//! Causes of failures, with an in-memory outbox and a simulated broker.

use outbox_admin::{Change, Holds, Next, Obstacle, Refused, causes, causes_of_aggregate, preview};
use outbox_core::{
    Aggregate, Message, MessageId, OutboxStore, OwnerId, PauseRequest, RelayHealth, Selection, Verdict,
};
use outbox_testing::MemoryStore;
use outbox_testing::Operator as _;

use crate::plant::{LONG, aggregate, noted, published, relay, settle};

fn takes_all(_: &Message) -> Option<Refused> {
    None
}

fn refuses(aggregate: Aggregate) -> impl Fn(&Message) -> Option<Refused> {
    move |message| {
        (message.aggregate == aggregate).then(|| Refused {
            obstacle: Obstacle::Full,
            what: "stream `S` is full".to_owned(),
            next: Next::default(),
        })
    }
}

fn dead(error: &str) -> Verdict {
    Verdict::Dead {
        error: error.to_owned(),
        halt: false,
    }
}

async fn with_dead(ids: &[&str], error: &str) -> (MemoryStore, Vec<MessageId>) {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let mut letters = Vec::new();
    for id in ids {
        let letter = noted(&store, id);
        settle(&store, &leases, letter, dead(error)).await;
        letters.push(letter);
    }
    (store, letters)
}

const FULL: &str = "backpressure: stream `S` is full or throttles, message 1 waits";

#[tokio::test(start_paused = true)]
async fn persistent_causes_are_first_and_counted_once() {
    let (store, letters) = with_dead(&["a", "b", "c"], FULL).await;
    let found = causes(&store, &letters, Ok(refuses(aggregate("b"))))
        .await
        .expect("read");
    let told: Vec<_> = found
        .iter()
        .map(|cause| (cause.holds, cause.obstacle, cause.messages))
        .collect();
    assert_eq!(
        told,
        [
            (Holds::Still, Some(Obstacle::Full), 1),
            (Holds::Unknown, Some(Obstacle::Full), 2)
        ]
    );
    let said = preview(&store, Change::Retry, &Selection::all(), None)
        .await
        .expect("previewed");
    assert_eq!(said.first, letters);
    let unknown = store.rows().iter().map(|row| row.message.id).collect::<Vec<_>>();
    let nobody: Result<fn(&Message) -> Option<Refused>, String> = Err("nats does not answer".to_owned());
    let away = causes(&store, &unknown, nobody).await.expect("read");
    assert_eq!(
        (away.len(), away[0].holds, away[0].messages),
        (1, Holds::Unknown, 3)
    );
    assert!(away[0].what.contains("nats does not answer"), "{away:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_preview_reports_waiting_causes() {
    let (store, letters) = with_dead(&["a"], FULL).await;
    let ask = async || {
        let found = causes(&store, &letters, Ok(takes_all)).await.expect("read");
        (found[0].holds, found[0].obstacle)
    };
    assert_eq!(ask().await, (Holds::Unknown, Some(Obstacle::Full)));
    let pause = PauseRequest {
        aggregate_type: Some("probe".to_owned()),
        reason: "moving".to_owned(),
        by: "ann".to_owned(),
        lasts: None,
    };
    store.pause(&pause).await.expect("paused");
    assert_eq!(ask().await, (Holds::Still, Some(Obstacle::Paused)));
    store.unpause(Some("probe")).await.expect("ended");

    let (store, letters) = with_dead(&["a"], FULL).await;
    let owner: OwnerId = outbox_core::OutboxStore::relays(&store).await.expect("relays")[0].owner;
    let ask = async || {
        let found = causes(&store, &letters, Ok(takes_all)).await.expect("read");
        (found[0].holds, found[0].obstacle)
    };
    store
        .announce(owner, LONG, &RelayHealth::Unhealthy.into())
        .await
        .expect("announced");
    assert_eq!(ask().await, (Holds::Still, Some(Obstacle::RelayUnhealthy)));
    store.leave(owner).await.expect("left");
    assert_eq!(ask().await, (Holds::Still, Some(Obstacle::NoRelay)));
}

#[tokio::test(start_paused = true)]
async fn outage_ends_only_after_a_publish() {
    let silent = "unknown: message 1 was not confirmed by stream `S` within 5s";
    let (store, letters) = with_dead(&["a"], silent).await;
    let ask = async || {
        let found = causes(&store, &letters, Ok(takes_all)).await.expect("read");
        (found[0].holds, found[0].obstacle)
    };
    assert_eq!(ask().await, (Holds::Gone, Some(Obstacle::RelayUnhealthy)));
    let owner = outbox_core::OutboxStore::relays(&store).await.expect("relays")[0].owner;
    store
        .announce(owner, LONG, &RelayHealth::Unknown.into())
        .await
        .expect("announced");
    assert_eq!(ask().await, (Holds::Unknown, Some(Obstacle::RelayUnhealthy)));
}

#[tokio::test(start_paused = true)]
async fn published_messages_list_only_current_rejections() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let message = noted(&store, "a");
    settle(&store, &leases, message, published(true)).await;
    let found = causes(&store, &[message], Ok(takes_all)).await.expect("read");
    assert_eq!(found, []);
    let found = causes(&store, &[message], Ok(refuses(aggregate("a"))))
        .await
        .expect("read");
    assert_eq!((found.len(), found[0].holds), (1, Holds::Still));
}

#[tokio::test(start_paused = true)]
async fn blocked_aggregate_is_explained_by_its_first_message() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let first = noted(&store, "a");
    noted(&store, "a");
    let failed = Verdict::Blocked {
        delay: LONG,
        error: Some("uncaptured: no stream captures subject `x` of message 1".to_owned()),
        attempt: false,
    };
    settle(&store, &leases, first, failed).await;
    let found = causes_of_aggregate(&store, &aggregate("a"), Ok(takes_all))
        .await
        .expect("read");
    let told: Vec<_> = found
        .iter()
        .map(|cause| (cause.holds, cause.obstacle, cause.messages))
        .collect();
    assert_eq!(told, [(Holds::Gone, Some(Obstacle::NotCaptured), 1)]);
    let free = causes_of_aggregate(&store, &aggregate("b"), Ok(takes_all))
        .await
        .expect("read");
    assert_eq!(free, []);
}

//! Publishing while leaders change and nodes die.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use outbox_core::{FailureClass, Message, MessageId, Publisher as _, Receipt};
use outbox_nats::{EventStream, JetStreamPublisher};

use crate::environment::{LONG, Nats, PLACED, message};
use crate::private_cluster::PrivateCluster;

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|n| message(&PLACED, &n.to_string(), 1)).collect()
}

pub(super) fn impatient(nats: &Nats) -> JetStreamPublisher {
    publisher_of(nats, &nats.stream())
}

pub(super) fn publisher_of(nats: &Nats, stream: &EventStream) -> JetStreamPublisher {
    let config = nats.publisher_config().ack_timeout(Duration::from_millis(500));
    stream.publisher(nats.client.clone()).with_config(config)
}

pub(super) async fn confirmed(publisher: &JetStreamPublisher, message: &Message) -> Receipt {
    let publish = async {
        loop {
            match publisher.publish(message).await {
                Ok(receipt) => return receipt,
                Err(error) => assert!(costs_no_attempt(error.class()), "{error}: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, publish).await.expect("a confirmation")
}

fn costs_no_attempt(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Unknown | FailureClass::Transient | FailureClass::Backpressure
    )
}

async fn all_confirmed(publisher: &JetStreamPublisher, messages: &[Message]) -> Vec<(MessageId, u64)> {
    let publishes = messages
        .iter()
        .map(async |message| (message.id, confirmed(publisher, message).await.stream_sequence));
    futures_util::stream::iter(publishes)
        .buffer_unordered(256)
        .collect()
        .await
}

async fn assert_stored_once(nats: &Nats, confirmed: Vec<(MessageId, u64)>) {
    let log = nats.log().await;
    let stored: HashMap<_, _> = log
        .into_iter()
        .map(|entry| (entry.message.unwrap().id, entry.stream_sequence))
        .collect();
    let last = nats.jetstream().get_stream(&nats.name).await.unwrap();
    assert_eq!(
        last.cached_info().state.last_sequence,
        u64::try_from(stored.len()).unwrap(),
        "no copies"
    );
    assert_eq!(stored, confirmed.into_iter().collect());
}

#[tokio::test]
async fn receipt_names_the_only_copy_after_leader_changes() {
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    nats.provision_replicated().await;
    let (publisher, messages) = (impatient(&nats), messages(5_000));
    let mut receipts = Vec::new();
    for messages in messages.chunks(500) {
        let publishing = all_confirmed(&publisher, messages);
        receipts.extend(nats.during_step_down(&nats.name, publishing).await);
    }
    assert_stored_once(&nats, receipts).await;
}

#[tokio::test]
async fn publisher_moves_to_another_node_after_a_killed_leader() {
    let Some(mut cluster) = PrivateCluster::start().await else {
        return;
    };
    let observer = cluster.nats().await;
    observer.provision_replicated().await;
    let leader = observer.leader(&observer.name).await;
    let nats = cluster.nats_at(&leader).await;
    let publisher = publisher_of(&nats, &observer.stream());
    let messages = messages(1_000);
    let publishing = all_confirmed(&publisher, &messages);
    let killing = async {
        observer.until_stored(100).await;
        cluster.node(&leader).kill();
    };
    let (receipts, ()) = tokio::join!(publishing, killing);
    assert_stored_once(&observer, receipts).await;

    publisher.abandon().await;
    confirmed(&publisher, &message(&PLACED, "1", 2)).await;
}

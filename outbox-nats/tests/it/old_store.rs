//! A server restarts with an old copy of its store.

use std::collections::HashSet;

use outbox_core::{Message, Publisher as _, StreamLog as _};
use outbox_nats::JetStreamPublisher;
use outbox_testing::eventually;
use time::OffsetDateTime;

use crate::environment::{Nats, PLACED, answered, message};
use crate::private_server::PrivateServer;

async fn publish(publisher: &JetStreamPublisher, message: &Message) {
    eventually("publishing", async || publisher.publish(message).await.is_ok()).await;
}

async fn stored_order(publisher: &JetStreamPublisher, nats: &Nats) -> Vec<Option<u64>> {
    eventually("reading", async || {
        publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await.is_ok()
    })
    .await;
    let log = nats.log().await.into_iter();
    log.map(|entry| entry.message.unwrap().sequence).collect()
}

async fn messages_lost_by_an_old_store_are_republished(strong: bool) {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let publisher = nats.stream_in_mode(strong).publisher(nats.client.clone());
    let messages: Vec<_> = (1..=6).map(|n| message(&PLACED, "1", n)).collect();
    for message in &messages[..3] {
        publish(&publisher, message).await;
    }
    let copy = server.kill_and_copy_store();
    server.restart().await;
    for message in &messages[3..] {
        publish(&publisher, message).await;
    }
    assert_eq!(
        stored_order(&publisher, &nats).await,
        (1..=6).map(Some).collect::<Vec<_>>()
    );
    server.kill_and_replace_store(copy);
    server.restart().await;
    assert_eq!(stored_order(&publisher, &nats).await, [Some(1), Some(2), Some(3)]);

    let known = answered(async || publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await).await;
    let all: HashSet<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(all.difference(&known).count(), 3, "missing messages are detected");
    for message in &messages {
        publish(&publisher, message).await;
    }
    assert_eq!(
        stored_order(&publisher, &nats).await,
        (1..=6).map(Some).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn messages_lost_by_an_old_store_are_republished_by_default() {
    messages_lost_by_an_old_store_are_republished(false).await;
}

#[tokio::test]
async fn messages_lost_by_an_old_store_are_republished_in_strong_mode() {
    messages_lost_by_an_old_store_are_republished(true).await;
}

//! Lists the messages on the stream.

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox_core::StreamLog as _;
use outbox_testing::eventually;
use time::OffsetDateTime;

use crate::environment::{Nats, PLACED, answered, message, on_both_servers, publish};

on_both_servers! {
    twenty_thousand_messages_are_all_listed,
    a_missing_stream_is_an_error,
}

async fn twenty_thousand_messages_are_all_listed(nats: &Nats) {
    nats.provision().await;
    // A busy machine confirms late.
    let config = nats.publisher_config().ack_timeout(Duration::from_mins(1));
    let publisher = &nats.publisher().with_config(config);
    let published: std::collections::HashSet<_> = futures_util::stream::iter(0..20_000)
        .map(|n| async move {
            let message = message(&PLACED, &n.to_string(), 1);
            publish(publisher, &message).await;
            message.id
        })
        .buffer_unordered(500)
        .collect()
        .await;
    let consumers = async || {
        let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
        stream.cached_info().state.consumer_count
    };
    let listed = answered(async || publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await);
    assert_eq!(listed.await, published);
    eventually("no consumer", async || consumers().await == 0).await;
}

async fn a_missing_stream_is_an_error(nats: &Nats) {
    assert!(
        nats.publisher()
            .message_ids(OffsetDateTime::UNIX_EPOCH)
            .await
            .is_err()
    );
}

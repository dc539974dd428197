//! The list of the messages on the stream.

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox_core::{Publisher as _, StreamLog as _};
use time::OffsetDateTime;

use crate::environment::{Nats, PLACED, message, on_both_servers};

on_both_servers! {
    twenty_thousand_messages_are_all_listed,
    a_missing_stream_is_an_error,
}

async fn twenty_thousand_messages_are_all_listed(nats: &Nats) {
    nats.provision().await;
    // A busy machine confirms late, which is not tested here.
    let config = nats.publisher_config().ack_timeout(Duration::from_mins(1));
    let publisher = &nats.publisher().with_config(config);
    let published: std::collections::HashSet<_> = futures_util::stream::iter(0..20_000)
        .map(|n| async move {
            let message = message(&PLACED, &n.to_string(), 1);
            publisher.publish(&message).await.unwrap();
            message.id
        })
        .buffer_unordered(500)
        .collect()
        .await;
    assert_eq!(
        publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await.unwrap(),
        published
    );
    let consumers = nats.jetstream().get_stream(&nats.name).await.unwrap();
    assert_eq!(
        consumers.cached_info().state.consumer_count,
        0,
        "nothing is left behind"
    );
}

async fn a_missing_stream_is_an_error(nats: &Nats) {
    assert!(
        nats.publisher()
            .message_ids(OffsetDateTime::UNIX_EPOCH)
            .await
            .is_err()
    );
}

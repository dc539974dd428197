//! A publish is answered by another responder than a stream, or not answered.

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox_core::{FailureClass, Publisher as _};

use crate::environment::{Nats, PLACED, message, on_both_servers, sent};

on_both_servers! {
    foreign_answer_is_no_acknowledgement,
    silent_listener_is_no_stream,
}

async fn foreign_answer_is_no_acknowledgement(nats: &Nats) {
    let without_stream_sequence = format!(r#"{{"stream":"{}"}}"#, nats.name);
    let answers = [
        "",
        "+OK",
        "hello",
        "{}",
        "[]",
        r#"{"stream":7}"#,
        &without_stream_sequence,
    ];
    let mut published = nats.client.subscribe(nats.prefix.wildcard()).await.unwrap();
    nats.client.flush().await.unwrap();
    let publisher = nats.publisher();
    for answer in answers {
        let message = message(&PLACED, "1", 1);
        let respond = async {
            let request = published.next().await.unwrap();
            let reply = request.reply.unwrap();
            nats.client
                .publish(reply, answer.to_owned().into())
                .await
                .unwrap();
        };
        let (outcome, ()) = tokio::join!(sent(&publisher, &message), respond);
        assert_eq!(outcome.unwrap_err().class(), FailureClass::Unknown, "{answer:?}");
    }
}

async fn silent_listener_is_no_stream(nats: &Nats) {
    let _published = nats.client.subscribe(nats.prefix.wildcard()).await.unwrap();
    nats.client.flush().await.unwrap();
    let config = nats.publisher_config().ack_timeout(Duration::from_millis(100));
    let publisher = nats.publisher().with_config(config);
    let error = publisher.publish(&message(&PLACED, "1", 1)).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::Unknown);
}

//! Pull requests and the server's answers.

use futures_util::StreamExt as _;
use outbox_core::{Delivery as _, SubscriberError, Subscription as _};
use outbox_nats::async_nats::{StatusCode, Subscriber};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::environment::{Nats, PLACED, SOON, consumer, message, on_both_servers};

on_both_servers! {
    delivery_after_a_rejection_is_received,
}

/// Method: publish a rejection on the inbox of the subscription, and poll the subscription only
/// after the rejection and a delivery have arrived.
async fn delivery_after_a_rejection_is_received(nats: &Nats) {
    nats.provision().await;
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    let pull = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", nats.name, spec.name);
    let mut requests = nats.client.subscribe(pull.clone()).await.unwrap();
    let request = timeout(SOON, async {
        tokio::select! {
            delivery = subscription.next() => panic!("{delivery:?}"),
            request = requests.next() => request.unwrap(),
        }
    });
    let inbox = request.await.unwrap().reply.unwrap();
    let mut copies = nats.client.subscribe(inbox.clone()).await.unwrap();
    // The request stays open for 20 s, because the subscription's own request may expire first.
    let request = format!(r#"{{"batch":1,"expires":{}}}"#, SOON.as_nanos());
    let requested = nats
        .client
        .publish_with_reply(pull, inbox.clone(), request.into());
    requested.await.unwrap();
    // The server reads a connection in order. So the consumer's info confirms that the server has
    // the subscription and the request.
    nats.consumer_info(&spec).await;

    // The async-nats client cannot publish a message with a status line.
    let refusal = "NATS/1.0 409 Refused\r\n\r\n";
    let sent = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nHPUB {inbox} {0} {0}\r\n{refusal}\r\n",
        refusal.len()
    );
    let address = nats.url().trim_start_matches("nats://");
    let mut raw = TcpStream::connect(address).await.unwrap();
    raw.write_all(sent.as_bytes()).await.unwrap();
    until_status(&mut copies, Some(409)).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    until_status(&mut copies, None).await;
    // The consumer's info arrives after all messages that the server has sent on this connection
    // before.
    nats.consumer_info(&spec).await;

    let delivery = subscription.next().await.unwrap();
    assert_eq!(delivery.incoming().payload, "1/placed/1");
    let error = subscription.next().await.unwrap_err();
    assert!(matches!(error, SubscriberError::Interrupted { .. }), "{error}");
}

async fn until_status(messages: &mut Subscriber, wanted: Option<u16>) {
    let arrival = async {
        loop {
            let status = messages.next().await.unwrap().status;
            let status = status.filter(|status| *status != StatusCode::OK);
            if status.map(|status| status.as_u16()) == wanted {
                return;
            }
        }
    };
    timeout(SOON, arrival).await.unwrap();
}

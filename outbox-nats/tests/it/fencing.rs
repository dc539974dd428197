//! Fenced publishing: the server rejects messages that would be out of order.

use std::time::Duration;

use outbox_core::{
    Delivery as _, EventDescriptor, FailureClass, Message, MessageId, Publisher as _, StreamLog as _,
};
use outbox_nats::async_nats::jetstream::stream::Config;
use outbox_nats::{EventStream, JetStreamPublisher, connect_options};
use outbox_testing::eventually;

use crate::environment::{
    self, Nats, PLACED, SHIPPED, answered, asked_for, connected, consumer, event_on, message,
    on_both_servers, receive,
};
use crate::proxy::Proxy;

on_both_servers! {
    zombie_message_is_stored_without_the_fence,
    zombie_message_is_rejected,
    overtaken_retry_is_a_duplicate,
    expired_subject_starts_again,
    a_restarted_relay_finds_the_stream_sequence,
    an_overtaken_message_is_not_lost,
    search_for_an_overtaken_message_ends,
    replayed_copy_is_stored_and_blocks_nothing,
    unfenced_messages_keep_their_subject,
    consumer_recognises_unrequested_event_types,
}

const ENOUGH: Duration = Duration::from_millis(300);

/// Duplicate window. A retry is later, so the window does not deduplicate the retry.
const WINDOW: Duration = Duration::from_millis(100);

async fn provision(nats: &Nats) {
    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.wildcard()],
        duplicate_window: WINDOW,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
}

fn fresh(nats: &Nats) -> JetStreamPublisher {
    publisher_of(nats, &nats.stream().with_strong_mode())
}

fn publisher_of(nats: &Nats, stream: &EventStream) -> JetStreamPublisher {
    let publisher = stream.publisher(nats.client.clone());
    publisher.with_config(nats.publisher_config())
}

async fn publish(publisher: &JetStreamPublisher, message: &Message) -> (u64, bool) {
    let receipt = environment::publish(publisher, message).await;
    (receipt.stream_sequence, receipt.duplicate)
}

async fn payloads(nats: &Nats) -> Vec<String> {
    let stored = nats.stored().await.into_iter();
    stored
        .map(|(_, payload)| String::from_utf8(payload.to_vec()).unwrap())
        .collect()
}

/// Waits until the duplicate window of all messages has passed by the server's clock. Method:
/// publish a probe twice.
async fn ids_are_forgotten(nats: &Nats) {
    let context = nats.jetstream();
    let probe = format!("{}.probe", nats.prefix);
    let publish = async || {
        let message =
            outbox_nats::async_nats::jetstream::message::PublishMessage::build().message_id("probe");
        let ack = context.send_publish(probe.clone(), message).await.unwrap();
        ack.await.unwrap().duplicate
    };
    publish().await;
    eventually("forgetting", || async { !publish().await }).await;
}

/// A replaced relay has its second message in flight. The next owner publishes this message and a
/// third; then the bytes of the replaced relay arrive.
async fn late_message(nats: &Nats, fenced: bool) {
    provision(nats).await;
    let proxy = Proxy::in_front_of(nats.url()).await;
    let options = connect_options().ignore_discovered_servers();
    let client = connected(proxy.url(), options).await;
    let stream = nats.stream_in_mode(fenced);
    let owner = publisher_of(nats, &stream);
    let impatient = nats.publisher_config().ack_timeout(Duration::from_secs(1));
    let zombie = stream.publisher(client).with_config(impatient);
    let messages: Vec<_> = (1..=3).map(|n| message(&PLACED, "1", n)).collect();
    answered(async || zombie.publish(&messages[0]).await).await;
    proxy.hold();
    let error = zombie.publish(&messages[1]).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::Unknown);
    publish(&owner, &messages[1]).await;
    publish(&owner, &messages[2]).await;
    ids_are_forgotten(nats).await;
    // The proxy counts a closed connection as drained only after all its bytes have arrived.
    drop(zombie);
    proxy.release();
    proxy.drained(1).await;
}

async fn orders(nats: &Nats) -> Vec<String> {
    let mut payloads = payloads(nats).await;
    payloads.retain(|payload| !payload.is_empty());
    payloads
}

async fn zombie_message_is_stored_without_the_fence(nats: &Nats) {
    late_message(nats, false).await;
    eventually("the late message", async || {
        let orders = orders(nats).await;
        orders.iter().filter(|order| *order == "1/placed/2").count() == 2
    })
    .await;
}

async fn zombie_message_is_rejected(nats: &Nats) {
    late_message(nats, true).await;
    assert_eq!(orders(nats).await, ["1/placed/1", "1/placed/2", "1/placed/3"]);
}

async fn overtaken_retry_is_a_duplicate(nats: &Nats) {
    provision(nats).await;
    let publisher = fresh(nats);
    let mut messages: Vec<_> = (1..=3).map(|n| message(&PLACED, "1", n)).collect();
    for message in &mut messages {
        message.created_at = time::OffsetDateTime::now_utc();
    }
    publish(&publisher, &messages[0]).await;
    let owner = fresh(nats);
    publish(&owner, &messages[1]).await;
    publish(&owner, &messages[2]).await;
    ids_are_forgotten(nats).await;
    let stored = nats.stored().await.len();
    assert_eq!(publish(&publisher, &messages[1]).await, (2, true));
    assert_eq!(publish(&fresh(nats), &messages[1]).await, (2, true));
    assert_eq!(publish(&fresh(nats), &messages[0]).await, (1, true));
    assert_eq!(nats.stored().await.len(), stored);
}

async fn expired_subject_starts_again(nats: &Nats) {
    provision(nats).await;
    let publisher = fresh(nats);
    for n in 1..=2 {
        publish(&publisher, &message(&PLACED, "1", n)).await;
    }
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.purge().await.unwrap();
    assert_eq!(publish(&publisher, &message(&PLACED, "1", 3)).await, (3, false));
    stream.purge().await.unwrap();
    assert_eq!(publish(&fresh(nats), &message(&PLACED, "1", 4)).await, (4, false));
}

async fn a_restarted_relay_finds_the_stream_sequence(nats: &Nats) {
    provision(nats).await;
    // Preflight succeeds on a subject without messages.
    answered(async || fresh(nats).preflight().await).await;
    for n in 1..=5 {
        assert_eq!(publish(&fresh(nats), &message(&PLACED, "1", n)).await, (n, false));
    }
}

/// The message became a dead letter, the aggregate continued, and an operator has resumed the
/// message.
async fn an_overtaken_message_is_not_lost(nats: &Nats) {
    provision(nats).await;
    let publisher = fresh(nats);
    let overtaken = message(&PLACED, "1", 2);
    for n in [1, 3, 4] {
        publish(&publisher, &message(&PLACED, "1", n)).await;
    }
    assert_eq!(publish(&fresh(nats), &overtaken).await, (4, false));
    assert_eq!(publish(&publisher, &message(&PLACED, "1", 5)).await, (5, false));
}

/// The publish has a quarter of the time that reading the whole subject takes.
async fn search_for_an_overtaken_message_ends(nats: &Nats) {
    provision(nats).await;
    let late = Message {
        created_at: time::OffsetDateTime::now_utc(),
        ..message(&PLACED, "1", 2)
    };
    let before = message(&PLACED, "1", 1);
    publish(&fresh(nats), &before).await;
    let subject = nats.prefix.aggregate_subject(&late.aggregate);
    let mut since: u64 = 0;
    let mut reading = Duration::ZERO;
    while reading / 4 < ENOUGH {
        for _ in 0..20_000 {
            nats.client.publish(subject.clone(), "".into()).await.unwrap();
        }
        since += 20_000;
        eventually("storing", async || nats.last_stream_sequence().await == since + 1).await;
        answered(async || {
            let begun = std::time::Instant::now();
            let read = fresh(nats).message_ids(time::OffsetDateTime::UNIX_EPOCH).await;
            reading = begun.elapsed();
            read
        })
        .await;
    }
    let impatient = nats.publisher_config().ack_timeout(reading / 4);
    let publisher = fresh(nats).with_config(impatient);
    let mut stored = None;
    eventually("publishing", async || {
        stored = match publisher.publish(&late).await {
            Ok(receipt) => Some(receipt),
            Err(error) => {
                let class = error.class();
                assert!(
                    matches!(class, FailureClass::Transient | FailureClass::Unknown),
                    "{error}"
                );
                None
            }
        };
        stored.is_some()
    })
    .await;
    assert_eq!(stored.unwrap().stream_sequence, since + 2);
    assert_eq!(nats.last_stream_sequence().await, since + 2);
}

async fn replayed_copy_is_stored_and_blocks_nothing(nats: &Nats) {
    provision(nats).await;
    let publisher = fresh(nats);
    let original = message(&PLACED, "1", 1);
    publish(&publisher, &original).await;
    publish(&publisher, &message(&PLACED, "1", 2)).await;
    let copy = Message {
        id: MessageId::fresh(),
        ..original.clone()
    };
    assert_eq!(publish(&publisher, &copy).await, (3, false));
    assert_eq!(publish(&publisher, &message(&PLACED, "1", 3)).await, (4, false));
    let again = Message {
        id: MessageId::fresh(),
        ..original
    };
    assert_eq!(publish(&fresh(nats), &again).await, (5, false));
    let next = message(&PLACED, "1", 4);
    assert_eq!(
        publish(&fresh(nats), &next).await,
        (6, false),
        "the last one is a copy"
    );
    assert_eq!(publish(&publisher, &next).await, (6, true));
}

async fn unfenced_messages_keep_their_subject(nats: &Nats) {
    let fixed = format!("legacy-{}", nats.name);
    let legacy = event_on("legacy", fixed.clone());
    answered(async || nats.stream().provision_for(&nats.client, [legacy]).await).await;
    let publisher = fresh(nats);
    publish(&publisher, &message(&PLACED, "1", 1)).await;
    publish(&publisher, &message(legacy, "1", 2)).await;
    let unsequenced = Message {
        sequence: None,
        ..message(&SHIPPED, "1", 0)
    };
    publish(&publisher, &unsequenced).await;
    publish(&publisher, &message(&PLACED, "1", 3)).await;
    let subjects: Vec<_> = nats
        .stored()
        .await
        .into_iter()
        .map(|(subject, _)| subject)
        .collect();
    let own = format!("{}.order.1", nats.prefix);
    assert_eq!(subjects, [own.clone(), fixed, format!("{own}.shipped"), own]);
}

async fn consumer_recognises_unrequested_event_types(nats: &Nats) {
    provision(nats).await;
    // Published without strong mode.
    publish(&nats.publisher(), &message(&PLACED, "1", 1)).await;
    let publisher = fresh(nats);
    publish(&publisher, &message(&PLACED, "1", 2)).await;
    publish(&publisher, &message(&SHIPPED, "1", 3)).await;
    publish(&publisher, &message(&PLACED, "1", 4)).await;
    let stream = nats.stream().with_strong_mode();
    let subscriber = stream.subscriber(nats.client.clone());
    let subscribe = async |events: &[&'static EventDescriptor]| {
        environment::subscribe(&subscriber, &consumer(events)).await
    };
    let mut subscription = subscribe(&[&PLACED]).await;
    let mut received = Vec::new();
    for _ in 0..4 {
        let delivery = receive(&mut subscription).await;
        let payload = String::from_utf8(delivery.incoming().payload.to_vec()).unwrap();
        received.push((payload, asked_for(&delivery).await));
        delivery.ack().await.unwrap();
    }
    let expected = [
        ("1/placed/1", true),
        ("1/placed/2", true),
        ("1/shipped/3", false),
        ("1/placed/4", true),
    ];
    assert_eq!(
        received,
        expected.map(|(payload, asked)| (payload.to_owned(), asked))
    );
    drop(subscribe(&[&PLACED, &SHIPPED]).await);
    publish(&publisher, &message(&SHIPPED, "1", 5)).await;
    let delivery = receive(&mut subscription).await;
    assert!(asked_for(&delivery).await);
}

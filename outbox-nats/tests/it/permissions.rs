//! Each part works with exactly the permissions of `docs/reference/permissions.md`: a server has a
//! user for each row of the table, and logs denials.

use std::time::Duration;

use outbox_core::{
    Delivery as _, EventDescriptor, Publisher as _, StreamLog as _, Subscriber as _, Subscription as _,
};
use outbox_nats::EventStream;

use crate::environment::{
    Nats, PLACED, SHIPPED, answered, asked_for, consumer, event_on, message, receive, subscribe,
};
use crate::printed_users::{FIXED_SUBJECT, NEWEST, OLDEST, User, Users};

const USERS: [User; 6] = [
    User::new("provision", &["provision"]),
    User::new("relay", &["relay"]),
    User::new("reader", &["reader"]),
    User::new("strong", &["relay", "strong", "reader"]),
    User::new("consumer", &["consumer"]),
    User::new("creator", &["consumer", "make-consumer"]),
];

async fn consume(nats: &Nats) {
    let subscriber = nats.subscriber();
    answered(async || subscriber.facts().await).await;
    let spec = consumer(&[&PLACED, &SHIPPED]);
    let mut subscription = subscribe(&subscriber, &spec).await;
    let delivery = receive(&mut subscription).await;
    assert!(asked_for(&delivery).await);
    delivery.progress().await.unwrap();
    delivery.retry_after(Duration::ZERO).await.unwrap();
    loop {
        let next = receive(&mut subscription).await;
        next.ack().await.unwrap();
        if next.incoming().stream_sequence == delivery.incoming().stream_sequence {
            break;
        }
    }
    answered(async || subscription.flush().await).await;
    answered(async || subscription.backlog().await).await;
    for left in subscription.stop().await {
        left.retry_after(Duration::ZERO).await.unwrap();
    }
    answered(async || subscription.flush().await).await;
}

async fn each_part_works_with_its_permissions(variable: &'static str) {
    let Some(users) = Users::start(variable, &USERS).await else {
        return;
    };
    let admin = users.nats("admin").await;
    let provision = users.nats("provision").await;
    let provision = async |event: &EventDescriptor| {
        let stream = EventStream::default();
        answered(async || stream.provision_for(&provision.client, [event]).await).await
    };
    assert!(provision(&PLACED).await.created);
    let legacy = event_on("legacy", FIXED_SUBJECT.to_owned());
    assert_eq!(provision(legacy).await.subjects_added, [FIXED_SUBJECT]);

    let relay = users.nats("relay").await.publisher();
    assert_eq!(answered(async || relay.preflight().await).await, [""; 0]);
    let (placed, shipped) = (message(&PLACED, "1", 1), message(&SHIPPED, "1", 2));
    answered(async || relay.publish(&placed).await).await;
    relay.abandon().await;
    answered(async || relay.publish(&shipped).await).await;

    let reader = users.nats("reader").await.publisher();
    let ids = answered(async || reader.message_ids(time::OffsetDateTime::UNIX_EPOCH).await).await;
    assert_eq!(ids.len(), 2);

    let strong = users.nats("strong").await;
    let strong = EventStream::default()
        .with_strong_mode()
        .publisher(strong.client.clone())
        .with_config(strong.publisher_config());
    assert_eq!(answered(async || strong.preflight().await).await, [""; 0]);
    // The last message on the subject has sequence 5, so the publisher searches the stream for the
    // last lower sequence.
    for n in [3, 5, 4] {
        let placed = message(&PLACED, "1", n);
        answered(async || strong.publish(&placed).await).await;
    }

    consume(&users.nats("creator").await).await;
    admin.publish(&message(&PLACED, "2", 1)).await;
    consume(&users.nats("consumer").await).await;

    assert_eq!(
        users.refused(),
        [""; 0],
        "a request that the table does not grant"
    );
}

#[tokio::test]
async fn each_part_works_with_its_permissions_on_the_newest_server() {
    each_part_works_with_its_permissions(NEWEST).await;
}

#[tokio::test]
async fn each_part_works_with_its_permissions_on_the_oldest_server() {
    each_part_works_with_its_permissions(OLDEST).await;
}

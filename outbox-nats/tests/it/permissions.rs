//! Each part works with exactly the permissions that the table in `docs/operations.md` grants it, and asks for nothing else.
//!
//! Method: a server whose users are the rows of the table, and what it has refused.

use std::time::Duration;

use outbox_core::dedup::{DedupKey, DedupStore as _, StoreClaim};
use outbox_core::testing::eventually;
use outbox_core::{
    ConsumerAdmin as _, Delivery as _, MessageId, Publisher as _, StartAt, StreamLog as _, Subscriber as _,
    Subscription as _,
};
use outbox_nats::{DedupBucketSpec, EventStream, KvDedupStore, Provisioning};

use crate::environment::{Nats, PLACED, SHIPPED, consumer, event_on, message, receive};
use crate::printed_users::{FIXED_SUBJECT, NEWEST, OLDEST, User, Users};

const USERS: [User; 8] = [
    User::new("provision", &["provision"]),
    User::new("relay", &["relay"]),
    User::new("reader", &["reader"]),
    User::new("strong", &["relay", "strong", "reader"]),
    User::new("consumer", &["consumer"]),
    User::new("creator", &["consumer", "make-consumer"]),
    User::new("operator", &["operator"]),
    User::new("bucket", &["bucket"]),
];

/// Answers have a bound, which a busy machine may exceed. Then the request is made again.
async fn answered<T, E>(mut request: impl AsyncFnMut() -> Result<T, E>) -> T {
    let mut answer = None;
    eventually("an answer", async || {
        answer = request().await.ok();
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

async fn consume(nats: &Nats, provisioning: Provisioning) {
    let config = nats.subscriber_config().provisioning(provisioning);
    let subscriber = nats.subscriber().with_config(config);
    subscriber.facts().await.unwrap();
    // Both event types, so that a server of 2.10 gets several filters.
    let spec = consumer(&[&PLACED, &SHIPPED]);
    let mut subscription = subscriber.subscribe(&spec).await.unwrap();
    let delivery = receive(&mut subscription).await;
    assert!(delivery.is_asked_for().await.unwrap());
    delivery.progress().await.unwrap();
    delivery.retry_after(Duration::ZERO).await.unwrap();
    // Others may come before it.
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

async fn move_consumer(nats: &Nats) {
    let operator = nats.subscriber();
    let standing = answered(async || operator.standing("billing").await).await;
    assert!(standing.is_some());
    let foreseen = answered(async || operator.foresee("billing", StartAt::Beginning).await).await;
    answered(async || operator.place("billing", foreseen.stream_sequence).await).await;
    // Its oldest message is asked for now.
    let standing = answered(async || operator.standing("billing").await).await;
    assert!(standing.is_some_and(|standing| standing.undelivered > 0));
    answered(async || operator.copy("billing", "invoicing", 1).await).await;
    answered(async || operator.remove("invoicing").await).await;
}

async fn each_part_works_with_its_row_of_the_table(variable: &'static str) {
    let Some(users) = Users::start(variable, &USERS).await else {
        return;
    };
    let admin = users.nats("admin").await;
    let provision = users.nats("provision").await;
    let report = EventStream::default()
        .provision_for(&provision.client, [&PLACED])
        .await;
    assert!(report.unwrap().created);
    let legacy = event_on("legacy", FIXED_SUBJECT.to_owned());
    let report = EventStream::default()
        .provision_for(&provision.client, [legacy])
        .await;
    assert_eq!(report.unwrap().subjects_added, [FIXED_SUBJECT]);

    let relay = users.nats("relay").await.publisher();
    assert_eq!(relay.preflight().await.unwrap(), [""; 0]);
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
        .publisher(strong.client.clone());
    assert_eq!(strong.preflight().await.unwrap(), [""; 0]);
    // The last one is searched for, because a higher number stands before it.
    for n in [3, 5, 4] {
        let placed = message(&PLACED, "1", n);
        answered(async || strong.publish(&placed).await).await;
    }

    consume(&users.nats("creator").await, Provisioning::Create).await;
    let (publisher, placed) = (admin.publisher(), message(&PLACED, "2", 1));
    answered(async || publisher.publish(&placed).await).await;
    consume(&users.nats("consumer").await, Provisioning::VerifyOnly).await;

    move_consumer(&users.nats("operator").await).await;

    KvDedupStore::open(admin.client.clone(), &DedupBucketSpec::default())
        .await
        .unwrap();
    let bucket = users.nats("bucket").await;
    let spec = DedupBucketSpec::default().provisioning(Provisioning::VerifyOnly);
    let store = KvDedupStore::open(bucket.client.clone(), &spec).await.unwrap();
    store.preflight(Duration::from_secs(60)).await.unwrap();
    let key = DedupKey::new("billing", MessageId::fresh().into());
    let lease = Duration::from_mins(10);
    let StoreClaim::Mine(token) = store.claim(&key, lease).await.unwrap() else {
        panic!("a free claim");
    };
    assert_eq!(store.claim(&key, lease).await.unwrap(), StoreClaim::InProgress);
    store.complete(&key, token, lease).await.unwrap();
    assert_eq!(store.claim(&key, lease).await.unwrap(), StoreClaim::Done);

    assert_eq!(
        users.refused(),
        [""; 0],
        "a request that the table does not grant"
    );
}

#[tokio::test]
async fn each_part_works_with_its_row_of_the_table_on_the_newest_server() {
    each_part_works_with_its_row_of_the_table(NEWEST).await;
}

#[tokio::test]
async fn each_part_works_with_its_row_of_the_table_on_the_oldest_server() {
    each_part_works_with_its_row_of_the_table(OLDEST).await;
}

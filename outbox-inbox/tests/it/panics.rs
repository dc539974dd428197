//! A panic in any part of a handler's work is a failure of its message.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::shutdown::CancellationToken;
use outbox_core::{ConsumerSpec, DomainEvent, Subscriber, SubscriberError};
use outbox_inbox::{
    BoxFuture, Effect, Event, HandlerContext, HandlerError, Inbox, InboxError, Next, Router, Tx, Upcasters,
    idempotent_handler,
};
use outbox_testing::{MemoryBroker, MemorySubscriber};
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::on_every_backend;
use crate::support::{Backend, OrderPlaced, SOON, TestDb, only_letter, placed, publish, quick};

const BAD: u64 = 13;

async fn enter(consumer: &str, order: u64, tx: &Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!("INSERT INTO effects (consumer, order_id) VALUES ('{consumer}', {order})");
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

macro_rules! entering {
    ($name:ident, $event:ty, $consumer:literal $(, $strategy:ident $(($($key:tt)*))?)?) => {
        #[idempotent_handler(consumer = $consumer, attempts = 3 $(, strategy = $strategy $(($($key)*))?)?)]
        async fn $name(event: Event<$event>, tx: Tx<'_>) -> Result<(), HandlerError> {
            enter($consumer, event.order_id, &tx).await
        }
    };
}

#[idempotent_handler(consumer = "body", attempts = 3)]
async fn panic_in_body(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("body", event.order_id, &tx).await?;
    assert!(event.order_id != BAD, "no luck");
    Ok(())
}

fn boom(event: &OrderPlaced) -> String {
    assert!(event.order_id != BAD, "no key");
    event.order_id.to_string()
}

entering!(keyed, OrderPlaced, "keyed", key(self::boom));

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "picked")]
struct OrderPicked {
    #[domain_event(aggregate_id)]
    #[serde(deserialize_with = "picky")]
    order_id: u64,
}

fn picky<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let order = u64::deserialize(from)?;
    assert!(order != BAD, "not to be read");
    Ok(order)
}

entering!(pick, OrderPicked, "picker");
entering!(pick_by_key, OrderPicked, "key_picker", key(order_id));

#[derive(Debug)]
struct Wordless;

impl fmt::Display for Wordless {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words")
    }
}

impl Error for Wordless {}

#[idempotent_handler(consumer = "wordless", attempts = 3)]
async fn fail_without_words(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("wordless", event.order_id, &tx).await?;
    if event.order_id == BAD {
        Err(Wordless.into())
    } else {
        Ok(())
    }
}

#[derive(Debug)]
struct Parting;

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parting")
    }
}

impl Error for Parting {}

impl Drop for Parting {
    fn drop(&mut self) {
        panic!("not without me")
    }
}

#[idempotent_handler(consumer = "parting", strategy = sequence, attempts = 3)]
async fn fail_and_part(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("parting", event.order_id, &tx).await?;
    if event.order_id == BAD {
        Err(Parting.into())
    } else {
        Ok(())
    }
}

entering!(layered, OrderPlaced, "layered");

fn moody<'a>(context: HandlerContext<'a>, next: Next<'a>) -> BoxFuture<'a, Result<Effect, HandlerError>> {
    let is_bad = context.message().aggregate.id == BAD.to_string();
    assert!(context.consumer() != "layered" || !is_bad, "not him");
    next.run(context)
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "weighed", version = 1)]
struct Weighed1 {
    #[domain_event(aggregate_id)]
    #[serde(deserialize_with = "picky")]
    order_id: u64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "weighed", version = 2)]
struct Weighed2 {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

entering!(weigh, Weighed2, "scales");

async fn panics_are_failures_and_other_messages_flow(test: TestDb) {
    let broker = MemoryBroker::new();
    for order_id in [1, 2, BAD, 3, 4] {
        publish(&broker, &placed(order_id)).await;
        publish(&broker, &OrderPicked { order_id }).await;
        publish(&broker, &Weighed1 { order_id }).await;
    }
    let router = Router::new()
        .handler::<panic_in_body>()
        .handler::<keyed>()
        .handler::<pick>()
        .handler::<pick_by_key>()
        .handler::<fail_without_words>()
        .handler::<fail_and_part>()
        .handler::<layered>()
        .handler::<weigh>();
    let inbox = test
        .inbox(&broker, router)
        .with_config(quick().concurrency(1))
        .with_middleware(moody)
        .with_upcasters(Upcasters::new().step(|old: Weighed1| Weighed2 {
            order_id: old.order_id,
        }))
        .on_handled(|_| panic!("not to be told"))
        .on_dead_letter(|_| panic!("nor of letters"));
    let report = inbox.drain().await.unwrap();
    assert_eq!(
        (report.handled, report.dead_letters, report.duplicates),
        (8 * 4, 8, 0),
        "{report:?}"
    );
    for (consumer, reason, attempts) in [
        ("body", "handler panicked: no luck", 3),
        ("keyed", "business key panicked: no key", 3),
        ("picker", "handler panicked: not to be read", 3),
        ("key_picker", "business key panicked: not to be read", 3),
        ("wordless", "error of the handler panicked: no words", 3),
        ("parting", "handling of the message panicked: not without me", 3),
        ("layered", "handler panicked: not him", 3),
        ("scales", "upcaster panicked: not to be read", 3),
    ] {
        let letter = only_letter(&test, consumer).await;
        assert_eq!(letter.aggregate.as_ref().unwrap().id, BAD.to_string());
        assert!(letter.error.starts_with(reason), "{consumer}: {}", letter.error);
        assert_eq!(letter.attempts, attempts, "{consumer}");
        for (order, effects) in [(1, 1), (2, 1), (BAD, 0), (3, 1), (4, 1)] {
            let found = test.effects(consumer, order).await;
            assert_eq!(found, effects, "{consumer}, order {order}");
        }
    }
}

#[derive(Debug)]
struct Flawed(MemorySubscriber, AtomicBool);

impl Subscriber for Flawed {
    type Subscription = <MemorySubscriber as Subscriber>::Subscription;

    async fn subscribe(&self, _: &ConsumerSpec) -> Result<Self::Subscription, SubscriberError> {
        assert!(!self.1.swap(true, Ordering::SeqCst), "the driver is flawed");
        Err(SubscriberError::Interrupted {
            context: "not yet".to_owned(),
            source: None,
        })
    }

    outbox_testing::__forward!(double => double.0; facts, standing, belongs);
}

#[tokio::test]
async fn a_consumer_that_panics_ends_the_inbox() {
    let test = TestDb::open(Backend::Sqlite, "a_consumer_that_panics_ends_the_inbox").await;
    let test = test.unwrap();
    let subscriber = Flawed(MemoryBroker::new().subscriber(), AtomicBool::default());
    let inbox = Inbox::new(test.db.clone(), subscriber)
        .with_router(Router::new().handler::<keyed>())
        .with_config(quick());
    let run = inbox.run(CancellationToken::new());
    let error = tokio::time::timeout(SOON, run)
        .await
        .expect("it ends")
        .unwrap_err();
    assert!(
        matches!(&error, InboxError::Panicked { consumer: "keyed", reason } if reason.contains("the driver is flawed")),
        "{error:?}"
    );
}

on_every_backend!(panics_are_failures_and_other_messages_flow);

//! Panics outside a handler's body count as failures.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::shutdown::CancellationToken;
use outbox_core::{ConsumerSpec, DomainEvent, Subscriber, SubscriberError};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{
    BoxFuture, Effect, Event, HandlerContext, HandlerError, Inbox, InboxError, InboxReport, Next, Router, Tx,
    Upcasters, idempotent_handler,
};
use outbox_testing::{MemoryBroker, MemorySubscriber};
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::on_every_backend;
use crate::support::{Backend, OrderPlaced, SOON, Script, TestDb, book, only_letter, placed, publish, quick};

const BAD: u64 = 13;

async fn enter(consumer: &str, order: u64, tx: &Tx<'_>) -> Result<(), HandlerError> {
    let sql = format!("INSERT INTO effects (consumer, order_id) VALUES ('{consumer}', {order})");
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

fn boom(event: &OrderPlaced) -> String {
    assert!(event.order_id != BAD, "no key");
    event.order_id.to_string()
}

#[idempotent_handler(consumer = "keyed", strategy = key(self::boom), attempts = 3)]
async fn keyed(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("keyed", event.order_id, &tx).await
}

struct Unspeakable(u64);

impl fmt::Display for Unspeakable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.0 != BAD, "no text");
        self.0.fmt(f)
    }
}

fn unspeakable(event: &OrderPlaced) -> Unspeakable {
    Unspeakable(event.order_id)
}

#[idempotent_handler(consumer = "shown", strategy = key(self::unspeakable), batch = 10, attempts = 3)]
async fn shown(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("shown", event.order_id, &tx).await
}

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

#[idempotent_handler(consumer = "picker", attempts = 3)]
async fn pick(event: Event<OrderPicked>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("picker", event.order_id, &tx).await
}

#[idempotent_handler(consumer = "key_picker", strategy = key(order_id), attempts = 3)]
async fn pick_by_key(event: Event<OrderPicked>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("key_picker", event.order_id, &tx).await
}

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

fn moody<'a>(context: HandlerContext<'a>, next: Next<'a>) -> BoxFuture<'a, Result<Effect, HandlerError>> {
    assert!(context.message().aggregate.id != BAD.to_string(), "not him");
    next.run(context)
}

async fn publish_all(broker: &MemoryBroker) {
    for order in [1, 2, BAD, 3, 4] {
        publish(broker, &placed(order)).await;
        publish(broker, &OrderPicked { order_id: order }).await;
    }
}

async fn check(
    test: &TestDb,
    consumer: &str,
    reason: &str,
    inbox: impl FnOnce(&MemoryBroker) -> Inbox<MemorySubscriber>,
) -> InboxReport {
    let broker = MemoryBroker::new();
    publish_all(&broker).await;
    let report = inbox(&broker).drain().await.unwrap();
    let letter = only_letter(test, consumer).await;
    assert_eq!(letter.aggregate.as_ref().unwrap().id, BAD.to_string());
    assert!(letter.error.starts_with(reason), "{}", letter.error);
    assert_eq!(letter.attempts, 3);
    for order in [1, 2, 3, 4] {
        assert_eq!(test.effects(consumer, order).await, 1, "order {order}");
    }
    assert_eq!(test.effects(consumer, BAD).await, 0);
    report
}

async fn panicking_business_key_is_a_failure(test: TestDb) {
    let router = Router::new().handler::<keyed>();
    check(&test, "keyed", "business key panicked: no key", |broker| {
        test.inbox(broker, router)
    })
    .await;
}

async fn panicking_key_text_in_a_batch_is_a_failure(test: TestDb) {
    let router = Router::new().handler::<shown>();
    check(&test, "shown", "business key panicked: no text", |broker| {
        test.inbox(broker, router)
    })
    .await;
}

async fn panicking_deserialization_is_a_failure(test: TestDb) {
    let router = Router::new().handler::<pick>();
    check(&test, "picker", "handler panicked: not to be read", |broker| {
        test.inbox(broker, router)
    })
    .await;
    let router = Router::new().handler::<pick_by_key>();
    check(
        &test,
        "key_picker",
        "business key panicked: not to be read",
        |broker| test.inbox(broker, router),
    )
    .await;
}

async fn panicking_error_text_is_a_failure(test: TestDb) {
    let router = Router::new().handler::<fail_without_words>();
    check(
        &test,
        "wordless",
        "error of the handler panicked: no words",
        |broker| test.inbox(broker, router),
    )
    .await;
}

async fn panic_outside_the_handler_is_a_failure(test: TestDb) {
    let router = Router::new().handler::<fail_and_part>();
    check(
        &test,
        "parting",
        "handling of the message panicked: not without me",
        |broker| test.inbox(broker, router),
    )
    .await;
}

async fn panicking_middleware_is_a_failure(test: TestDb) {
    let broker = MemoryBroker::new();
    publish_all(&broker).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(Script::ok())
        .with_middleware(moody);
    let report = inbox.drain().await.unwrap();
    let letters = dead_letters(&test.db, "books").await.unwrap();
    assert_eq!((report.handled, letters.len()), (4, 1), "{report:?}");
    assert!(
        letters[0].error.contains("panicked: not him"),
        "{}",
        letters[0].error
    );
    assert_eq!(test.effects("books", BAD).await, 0);
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

#[idempotent_handler(consumer = "scales", attempts = 3)]
async fn weigh(event: Event<Weighed2>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter("scales", event.order_id, &tx).await
}

async fn panicking_upcaster_is_a_failure(test: TestDb) {
    let broker = MemoryBroker::new();
    for order_id in [1, BAD, 2] {
        publish(&broker, &Weighed1 { order_id }).await;
    }
    let upcasters = Upcasters::new().step(|old: Weighed1| Weighed2 {
        order_id: old.order_id,
    });
    let inbox = test
        .inbox(&broker, Router::new().handler::<weigh>())
        .with_upcasters(upcasters);
    inbox.drain().await.unwrap();
    let letters = dead_letters(&test.db, "scales").await.unwrap();
    assert_eq!(letters.len(), 1);
    let error = &letters[0].error;
    assert!(error.starts_with("upcaster panicked: not to be read"), "{error}");
    assert_eq!(
        test.effects("scales", 1).await + test.effects("scales", 2).await,
        2
    );
}

async fn panicking_hooks_change_no_outcome(test: TestDb) {
    let router = Router::new().handler::<keyed>();
    let report = check(&test, "keyed", "business key panicked: no key", |broker| {
        test.inbox(broker, router)
            .on_handled(|_| panic!("not to be told"))
            .on_dead_letter(|_| panic!("nor of letters"))
    })
    .await;
    assert_eq!(
        (report.handled, report.dead_letters, report.duplicates),
        (4, 1, 0),
        "{report:?}"
    );
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

on_every_backend!(
    panicking_business_key_is_a_failure,
    panicking_key_text_in_a_batch_is_a_failure,
    panicking_deserialization_is_a_failure,
    panicking_error_text_is_a_failure,
    panic_outside_the_handler_is_a_failure,
    panicking_middleware_is_a_failure,
    panicking_upcaster_is_a_failure,
    panicking_hooks_change_no_outcome,
);

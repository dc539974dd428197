//! Aggregates on a stream without their first messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::{
    ConsumerSpec, Delivery, DomainEvent as _, Incoming, StartAt, Subscriber, SubscriberError, Subscription,
};
use outbox_inbox::{Handler, Inbox, Router};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription, eventually};
use sea_orm::DatabaseConnection;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, within};
use crate::support::{OrderPlaced, SOON, TestDb, slow};

noting!(note, consumer = "latecomer", strategy = sequence(gap = "1h"));

#[derive(Debug)]
struct Counting<T> {
    inner: T,
    questions: Arc<AtomicU32>,
}

impl Subscriber for Counting<MemorySubscriber> {
    type Subscription = Counting<MemorySubscription>;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<Self::Subscription, SubscriberError> {
        Ok(Counting {
            inner: self.inner.subscribe(consumer).await?,
            questions: self.questions.clone(),
        })
    }

    outbox_testing::__forward!(double => double.inner; facts, standing, belongs);
}

impl Counting<MemorySubscription> {
    fn delivery(&self, inner: MemoryDelivery) -> Counting<MemoryDelivery> {
        Counting {
            inner,
            questions: self.questions.clone(),
        }
    }
}

impl Subscription for Counting<MemorySubscription> {
    type Delivery = Counting<MemoryDelivery>;

    async fn next(&mut self) -> Result<Self::Delivery, SubscriberError> {
        let inner = self.inner.next().await?;
        Ok(self.delivery(inner))
    }

    async fn stop(&mut self) -> Vec<Self::Delivery> {
        let fetched = self.inner.stop().await;
        fetched.into_iter().map(|inner| self.delivery(inner)).collect()
    }

    outbox_testing::__forward!(double => double.inner; backlog, flush);
}

impl Delivery for Counting<MemoryDelivery> {
    fn incoming(&self) -> &Incoming {
        self.inner.incoming()
    }

    async fn ack(&self) -> Result<(), SubscriberError> {
        self.inner.ack().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SubscriberError> {
        self.inner.retry_after(delay).await
    }

    async fn progress(&self) -> Result<(), SubscriberError> {
        self.inner.progress().await
    }

    async fn is_asked_for(&self) -> Result<bool, SubscriberError> {
        self.inner.is_asked_for().await
    }

    async fn has_predecessors(&self) -> Result<bool, SubscriberError> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        self.inner.has_predecessors().await
    }
}

type Questions = Arc<AtomicU32>;

fn inbox<H: Handler>(
    db: DatabaseConnection,
    broker: &MemoryBroker,
    orders: &Orders,
) -> (Inbox<Counting<MemorySubscriber>>, Questions) {
    let questions = Questions::default();
    let subscriber = Counting {
        inner: broker.subscriber(),
        questions: questions.clone(),
    };
    let inbox = Inbox::new(db, subscriber)
        .with_router(Router::new().handler::<H>())
        .with_config(slow().concurrency(1))
        .with_state(orders.clone());
    (inbox, questions)
}

/// Leaves only the lines in `left` on the stream.
async fn put_lines(broker: &MemoryBroker, orders: u64, last: u32, left: &[u32]) {
    let mut forgotten = Vec::new();
    for line in 1..=last {
        for order_id in 0..orders {
            put(broker, &numbered(order_id, line)).await;
            if !left.contains(&line) {
                forgotten.push(broker.log().last().unwrap().stream_sequence);
            }
        }
    }
    broker.lose_stream_sequences(&forgotten.into_iter().collect(), false);
}

async fn late_aggregate_start_costs_one_request(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 20, 4, &[3, 4]).await;
    let (inbox, questions) = inbox::<note>(test.db.clone(), &broker, &orders);
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (40, 0), "{report:?}");
    for order_id in 0..20 {
        assert_eq!(
            lines(&test, "latecomer", order_id).await,
            [3, 4],
            "order {order_id}"
        );
    }
    assert_eq!(questions.load(Ordering::SeqCst), 20);
}

async fn message_waits_for_gap_after_late_start(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 1, 4, &[2, 4]).await;
    let (shutdown, run) = spawn(inbox::<note>(test.db.clone(), &broker, &orders).0);
    orders.until("the beginning", |seen| seen.runs_of(0) > 0).await;
    put(&broker, &numbered(0, 3)).await;
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3, 4]);
}

async fn message_waits_for_failing_predecessor(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.line_rule((0, 2), Rule::Fail);
    put_lines(&broker, 1, 3, &[2, 3]).await;
    let (shutdown, run) = spawn(inbox::<note>(test.db.clone(), &broker, &orders).0);
    orders.until("two failures", |seen| seen.runs_of(0) > 1).await;
    assert!(orders.seen().runs.iter().all(|run| *run == (0, 2)));
    orders.line_rule((0, 2), None);
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3]);
}

/// Another process returns the first message of an aggregate unhandled. This process receives the
/// next message first.
async fn message_waits_for_predecessor_in_other_process(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 1, 3, &[2, 3]).await;
    let mut other = broker.subscriber().subscribe(&latecomer()).await.unwrap();
    let taken = other.next().await.unwrap();
    let (inbox, questions) = inbox::<note>(test.db.clone(), &broker, &orders);
    let (shutdown, run) = spawn(inbox);
    eventually("the question", async || questions.load(Ordering::SeqCst) > 0).await;
    taken.retry_after(Duration::ZERO).await.unwrap();
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3]);
}

fn latecomer() -> ConsumerSpec {
    ConsumerSpec {
        name: "latecomer".to_owned(),
        events: OrderPlaced::DESCRIPTORS.iter().collect(),
        ack_wait: SOON * 4,
        whole_aggregates: true,
        siblings: Vec::new(),
        in_flight_max: 100,
        prefetch: 1,
        start_at: StartAt::Beginning,
    }
}

on_every_backend!(
    late_aggregate_start_costs_one_request,
    message_waits_for_gap_after_late_start,
    message_waits_for_failing_predecessor,
    message_waits_for_predecessor_in_other_process,
);

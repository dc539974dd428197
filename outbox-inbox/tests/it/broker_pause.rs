//! Pauses from the view of the broker's driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::{ConsumerSpec, Subscriber, SubscriberError, Subscription};
use outbox_inbox::{Event, HandlerError, HandlerState, Inbox, PausedConsumers, Router, idempotent_handler};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription, eventually};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::orders::{Orders, Rule};
use crate::pause::{is_paused, until_paused};
use crate::runtime::{stop, within};
use crate::support::{Backend, OrderPlaced, TestDb, placed, publish, slow};

#[derive(Debug, Clone)]
struct Watched {
    subscriber: MemorySubscriber,
    permits: Arc<Semaphore>,
    flushed: Arc<AtomicU32>,
}

struct WatchedSubscription {
    subscription: MemorySubscription,
    flushed: Arc<AtomicU32>,
}

impl Watched {
    fn new(broker: &MemoryBroker, permits: usize) -> Self {
        Self {
            subscriber: broker.subscriber(),
            permits: Arc::new(Semaphore::new(permits)),
            flushed: Arc::default(),
        }
    }
}

impl Subscriber for Watched {
    type Subscription = WatchedSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<WatchedSubscription, SubscriberError> {
        self.permits.acquire().await.unwrap().forget();
        Ok(WatchedSubscription {
            subscription: self.subscriber.subscribe(consumer).await?,
            flushed: self.flushed.clone(),
        })
    }

    outbox_testing::__forward!(double => double.subscriber; facts, standing, belongs);
}

impl Subscription for WatchedSubscription {
    type Delivery = MemoryDelivery;

    async fn flush(&mut self) -> Result<(), SubscriberError> {
        self.flushed.fetch_add(1, Ordering::SeqCst);
        self.subscription.flush().await
    }

    outbox_testing::__forward!(double => double.subscription; next, backlog, stop);
}

#[idempotent_handler(consumer = "asking", strategy = natural)]
async fn ask(event: Event<OrderPlaced>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    orders.follow(&event).await
}

#[idempotent_handler(consumer = "telling", strategy = natural)]
async fn tell(_event: Event<OrderPlaced>, _orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_during_pause_waits_for_last_acknowledgements() {
    let test = TestDb::open(Backend::Sqlite, "flushed_pause").await.unwrap();
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in 0..2 {
        publish(&broker, &OrderPlaced { order_id: 1, line }).await;
    }
    orders.line_rule((1, 0), Rule::Wait);
    let subscriber = Watched::new(&broker, 1);
    let inbox = Inbox::new(test.db.clone(), subscriber.clone())
        .with_router(Router::new().handler::<ask>())
        .with_config(slow())
        .with_state(orders.clone());
    let (health, shutdown) = (inbox.health(), CancellationToken::new());
    let token = shutdown.clone();
    let run = tokio::spawn(async move { inbox.run(token).await.unwrap() });
    orders.until("the run", |seen| seen.runs_of(1) == 1).await;
    let pauses = PausedConsumers::new(test.db.clone());
    pauses.pause("asking", "stocktaking").await.unwrap();
    until_paused(&health, "asking").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    orders.line_rule((1, 0), None);
    assert_eq!(subscriber.flushed.load(Ordering::SeqCst), 0);
    assert_eq!(stop((shutdown, run)).await.handled, 1);
    assert_eq!(subscriber.flushed.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_waits_for_a_resumed_consumer() {
    let test = TestDb::open(Backend::Sqlite, "drained_pause").await.unwrap();
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    publish(&broker, &placed(1)).await;
    orders.rule(1, Rule::Wait);
    let pauses = PausedConsumers::new(test.db.clone());
    pauses.pause("telling", "stocktaking").await.unwrap();
    let subscriber = Watched::new(&broker, 2);
    let inbox = Inbox::new(test.db.clone(), subscriber.clone())
        .with_router(Router::new().handler::<ask>().handler::<tell>())
        .with_config(slow())
        .with_state(orders.clone());
    let health = inbox.health();
    let run = tokio::spawn(async move { inbox.drain().await.unwrap() });
    orders.until("the run", |seen| seen.runs_of(1) == 1).await;
    until_paused(&health, "telling").await;
    pauses.resume("telling").await.unwrap();
    eventually("the end of the pause", async || !is_paused(&health, "telling")).await;
    orders.rule(1, None);
    within(broker.until_idle("asking")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    subscriber.permits.add_permits(1);
    let report = within(run).await.unwrap();
    assert_eq!(report.handled, 2, "{report:?}");
}

//! The parts of the loop, each alone.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Aggregate, Headers, Message, MessageId, StartAt, Subscriber as _, Subscription};
use outbox_sea_orm::TableNames;
use outbox_testing::{MemoryBroker, MemorySubscriber};
use sea_orm::{ConnectOptions, Database as Pool};
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, HandlerServices, Shared, Stop};
use super::message::{Route, RoutedMessage};
use super::receive::origin::Origin;
use super::receive::receiver::{DeliveryOf, Idleness, Received, Receiver};
use super::receive::unanswered::Unanswered;
use super::report::Tally;
use super::run::job::{EndedJob, EndedLane, Job, Jobs};
use super::schedule::scheduler::Scheduler;
use crate::config::InboxConfig;
use crate::database::Database;
use crate::dedup::sql::InboxSql;
use crate::dedup::{Outcome, Retry};
use crate::handler::{Effect, HandlerError, HandlerOptions, Registration, Shape, Strategy};

type Delivery = DeliveryOf<MemorySubscriber>;

const HANDLER: Registration = Registration {
    consumer: "books",
    handler: "book",
    events: &[],
    file: "book.rs",
    line: 7,
    requires: &[],
    shape: Shape {
        several: false,
        transactional: false,
        emits: false,
    },
    options: HandlerOptions::new().strategy(Strategy::Natural),
    invoke: |context| {
        let fails = context.messages[0].aggregate.id == "fails";
        Box::pin(async move {
            match fails {
                true => Err(HandlerError::retry_after(Duration::from_secs(9))),
                false => Ok(Effect::default()),
            }
        })
    },
};

async fn consumer(config: InboxConfig) -> Arc<Consumer> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1).sqlx_logging(false);
    let pool = Pool::connect(options).await.unwrap();
    let shared = Shared {
        sql: InboxSql::of(&pool, &TableNames::default()),
        database: Database::inspect(pool).await.unwrap(),
        services: HandlerServices::default(),
        config,
        tally: Tally::default(),
        belongs: Arc::new(|_, _, _| true),
    };
    let start_at = StartAt::default();
    Arc::new(Consumer::new("books", &[HANDLER], Arc::new(shared), start_at))
}

fn message(order: &str) -> Message {
    Message {
        id: MessageId::fresh(),
        event_id: MessageId::fresh().into(),
        event_type: "order.placed".to_owned(),
        event_version: 1,
        aggregate: Aggregate::new("order", order),
        sequence: None,
        subject: None,
        content_type: String::new(),
        payload: Default::default(),
        headers: Headers::default(),
        created_at: OffsetDateTime::UNIX_EPOCH,
    }
}

fn routed(order: &str) -> RoutedMessage {
    let route = Route::Handler {
        handler: Arc::new(HANDLER),
        upcast_to: None,
    };
    RoutedMessage::new(Ok(Arc::new(message(order))), route, false)
}

async fn deliveries(consumer: &Consumer, count: usize) -> Vec<Origin<Delivery>> {
    let broker = MemoryBroker::new();
    let mut subscription = broker.subscriber().subscribe(&consumer.spec()).await.unwrap();
    let mut origins = Vec::new();
    for _ in 0..count {
        broker.inject("orders", Vec::new(), &b"{}"[..]);
        origins.push(Origin::broker(subscription.next().await.unwrap()));
    }
    origins
}

fn unanswered(consumer: &Arc<Consumer>) -> Unanswered<Delivery> {
    Unanswered::new(consumer.clone(), Stop::default(), TaskTracker::new())
}

async fn scheduled(consumer: &Arc<Consumer>, orders: &[&str]) -> Scheduler<Delivery> {
    let (mut unanswered, mut scheduler) = (unanswered(consumer), Scheduler::new(consumer.clone()));
    for (origin, order) in deliveries(consumer, orders.len()).await.into_iter().zip(orders) {
        let (key, in_flight) = unanswered.enter(origin, routed(order));
        scheduler.lanes.push(key, in_flight, tokio::time::Instant::now());
    }
    scheduler
}

fn order(job: &Job<Delivery>) -> String {
    let message = job.lanes[0].1[0].routed.message.as_ref().unwrap();
    message.aggregate.id.clone()
}

fn end(scheduler: &mut Scheduler<Delivery>, job: Job<Delivery>) {
    let lanes = job.lanes.into_iter().map(|(key, items)| EndedLane {
        key,
        over: items
            .iter()
            .map(|item| (item.local_id, Outcome::Handled))
            .collect(),
        over_to: 0,
        stopped: None,
        rest: Vec::new(),
    });
    let ended = EndedJob {
        from: job.from,
        lanes: lanes.collect(),
        messages: 1,
        took: Duration::from_millis(1),
    };
    scheduler.ended(&ended);
    for lane in ended.lanes {
        scheduler
            .lanes
            .finish(&lane.key, Vec::new(), None, tokio::time::Instant::now());
    }
}

#[tokio::test]
async fn scheduler_keeps_to_slots_and_to_the_order_of_an_aggregate() {
    let consumer = consumer(InboxConfig::default().concurrency(2)).await;
    let mut scheduler = scheduled(&consumer, &["a", "a", "b", "c"]).await;
    let first = scheduler.step().unwrap();
    let second = scheduler.step().unwrap();
    assert_eq!((order(&first), order(&second)), ("a".to_owned(), "b".to_owned()));
    assert!(scheduler.step().is_none(), "no slot is free");
    end(&mut scheduler, second);
    let third = scheduler.step().unwrap();
    assert_eq!(
        order(&third),
        "c",
        "the second message of `a` waits for the first"
    );
    end(&mut scheduler, first);
    assert_eq!(order(&scheduler.step().unwrap()), "a");
    assert!(scheduler.has_jobs() && !scheduler.has_messages());
}

#[tokio::test]
async fn unanswered_messages_are_counted_until_their_answer() {
    let consumer = consumer(InboxConfig::default()).await;
    let mut unanswered = unanswered(&consumer);
    let mut ids = Vec::new();
    for origin in deliveries(&consumer, 2).await {
        ids.push(unanswered.enter(origin, routed("a")).1.local_id);
    }
    let both = unanswered.usage();
    assert!(unanswered.answered(ids[0]).is_some());
    assert!(unanswered.answered(ids[0]).is_none(), "it has its answer");
    let one = unanswered.usage();
    assert_eq!((both.messages, one.messages), (2, 1));
    assert_eq!(both.bytes, 2 * one.bytes);
    assert_eq!(
        unanswered.held_letters(0).room + one.bytes,
        InboxConfig::default().buffer_bytes
    );
}

#[tokio::test]
async fn jobs_acknowledge_effects_and_return_unfinished_messages() {
    let consumer = consumer(InboxConfig::default()).await;
    let mut scheduler = scheduled(&consumer, &["a", "fails"]).await;
    let mut jobs = Jobs::new(consumer.clone(), Stop::default(), TaskTracker::new());
    while let Some(job) = scheduler.step() {
        jobs.start(job);
    }
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let mut lane = jobs.ended().await.unwrap().lanes.remove(0);
        outcomes.extend(lane.over.pop().map(|(_, outcome)| outcome));
        outcomes.extend(lane.stopped.map(|(_, outcome)| outcome));
    }
    outcomes.sort_by_key(Outcome::after);
    let deferred = Outcome::Retry {
        after: Duration::from_secs(9),
        reason: Retry::Deferred,
    };
    assert_eq!(outcomes, [Outcome::Handled, deferred]);
}

#[tokio::test]
async fn receiver_has_no_subscription_while_its_consumer_is_paused() {
    let consumer = consumer(InboxConfig::default()).await;
    let broker = MemoryBroker::new();
    let subscriber = Arc::new(broker.subscriber());
    let idleness = Idleness::of_all(1).next();
    let mut receiver = Receiver::new(subscriber, consumer.clone(), None, idleness);
    let steps = async |receiver: &mut Receiver<MemorySubscriber>| loop {
        match receiver.next(true).await {
            Received::Nothing => return Vec::new(),
            received => {
                let deliveries = receiver.step(received);
                if !deliveries.is_empty() {
                    return deliveries;
                }
            }
        }
    };
    assert!(steps(&mut receiver).await.is_empty());
    broker.inject("orders", Vec::new(), &b"{}"[..]);
    assert_eq!(steps(&mut receiver).await.len(), 1);
    consumer.pause.set(true);
    assert!(steps(&mut receiver).await.is_empty() && receiver.is_paused());
    broker.inject("orders", Vec::new(), &b"{}"[..]);
    assert!(steps(&mut receiver).await.is_empty());
    assert!(receiver.all_idle(false, false, true).await);
    consumer.pause.set(false);
    while receiver.is_paused() {
        let received = receiver.next(true).await;
        receiver.step(received);
    }
    loop {
        let deliveries = steps(&mut receiver).await;
        if !deliveries.is_empty() {
            break;
        }
    }
}

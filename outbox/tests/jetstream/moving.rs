//! A consumer is replayed, on its stream and in its database at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outbox::core::{ConsumerAdmin, Foreseen, StartAt, Subscriber, SubscriberError};
use outbox::inbox::{Consumers, ConsumersError, Handler, Memory, PausedConsumers, Router, Unremembered};
use outbox::nats::JetStreamSubscription;
use outbox::prelude::*;
use outbox::testing::eventually;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::place::{MARIADB, NEWEST, OLDEST, POSTGRES, Place, Process, note};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "crate", name = "moved")]
struct CrateMoved {
    #[domain_event(aggregate_id)]
    number: u32,
    step: u32,
}

fn step(step: u32) -> CrateMoved {
    CrateMoved { number: 1, step }
}

#[idempotent_handler(consumer = "crates_before")]
async fn before(event: Event<CrateMoved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    note(&tx, "crates_before", &event.step.to_string()).await
}

/// An operator whose process ends at a step: before the broker does it, or before its answer comes back.
#[derive(Clone)]
struct Operator {
    inner: JetStreamSubscriber,
    ends_at: Arc<Mutex<Option<(&'static str, bool)>>>,
    ended: Arc<AtomicBool>,
}

impl Operator {
    fn ends(&self, act: &'static str, is_done: bool) -> Result<(), SubscriberError> {
        if self
            .ends_at
            .lock()
            .unwrap()
            .take_if(|at| *at == (act, is_done))
            .is_none()
        {
            return Ok(());
        }
        self.ended.store(true, Ordering::SeqCst);
        Err(SubscriberError::Interrupted {
            context: format!("the operator's process ended at {act}"),
            source: None,
        })
    }
}

impl Subscriber for Operator {
    type Subscription = JetStreamSubscription;

    outbox::testing::__forward!(double => double.inner; subscribe, facts, standing, belongs);
}

impl ConsumerAdmin for Operator {
    async fn foresee(&self, consumer: &str, start_at: StartAt) -> Result<Foreseen, SubscriberError> {
        self.inner.foresee(consumer, start_at).await
    }

    async fn place(&self, consumer: &str, stream_sequence: u64) -> Result<(), SubscriberError> {
        self.ends("place", false)?;
        self.inner.place(consumer, stream_sequence).await?;
        self.ends("place", true)
    }
}

/// The consumers as an operator sees them whose process ends at a step, if one is given.
fn operator(place: &Place, ends_at: Option<(&'static str, bool)>) -> (Consumers<Operator>, Arc<AtomicBool>) {
    let ended = Arc::<AtomicBool>::default();
    let operator = Operator {
        inner: place.stream.subscriber(place.client.clone()),
        ends_at: Arc::new(Mutex::new(ends_at)),
        ended: ended.clone(),
    };
    let router = Router::new().handler::<before>();
    (
        Consumers::new(place.db.clone(), operator).with_router(router),
        ended,
    )
}

fn start<H: Handler>(place: &Place) -> Process {
    let subscriber = place.stream.subscriber(place.client.clone());
    let inbox = Inbox::new(place.db.clone(), subscriber);
    Process::start(inbox.with_router(Router::new().handler::<H>()))
}

/// Pauses the consumer, long enough ago for everybody to have noticed by the database's clock, and waits until its process has, if one runs.
async fn pause(place: &Place, process: Option<&Process>, consumer: &str) {
    let pauses = PausedConsumers::new(place.db.clone());
    assert!(pauses.pause(consumer, "it moves").await.unwrap());
    place
        .execute("UPDATE inbox_pauses SET paused_at = TIMESTAMP '2026-01-02 03:04:05'")
        .await;
    if let Some(process) = process {
        eventually("the pause", async || process.is_paused(consumer)).await;
    }
    // Behind it no request follows the last one.
    let (consumers, _) = operator(place, None);
    eventually("the last request", async || {
        let lag = consumers.lag(consumer).await.unwrap();
        !lag.on_stream.unwrap().is_receiving
    })
    .await;
}

async fn resume(place: &Place, consumer: &str) {
    let pauses = PausedConsumers::new(place.db.clone());
    assert!(pauses.resume(consumer).await.unwrap());
}

/// Steps 1 to 3 are handled. They are replayed from behind step 1 on, once with what the inbox remembers and once without it. The operator's process ends at each act of the broker, and is started again. A process of the consumer runs during the first move.
async fn a_consumer_is_replayed_together_with_its_rows(nats: &'static str, database: &'static str) {
    let Some(place) = Place::open(nats, database).await else {
        return;
    };
    let process = start::<before>(&place);
    place.publish([step(1)]).await;
    place.until_acknowledged("crates_before", 1).await;
    let behind_the_first = StartAt::Time(OffsetDateTime::now_utc());
    place.publish([step(2), step(3)]).await;
    place.until_acknowledged("crates_before", 3).await;

    pause(&place, Some(&process), "crates_before").await;
    is_replayed_with_its_memory(&place, behind_the_first).await;
    assert_eq!(place.noted("crates_before").await, ["1", "2", "3"]);
    let report = process.stop().await;
    assert_eq!((report.handled, report.duplicates), (3, 2), "{report:?}");

    pause(&place, None, "crates_before").await;
    is_replayed_without_its_memory(&place, behind_the_first).await;
    let process = start::<before>(&place);
    place.until_acknowledged("crates_before", 2).await;
    assert_eq!(place.noted("crates_before").await, ["1", "2", "2", "3", "3"]);
    process.stop().await;

    place.close().await;
}

async fn is_replayed_with_its_memory(place: &Place, from: StartAt) {
    let (consumers, _) = operator(place, None);
    // What lies before the oldest row has to be taken for forgotten.
    let plan = consumers.plan_replay("crates_before", StartAt::Beginning, Memory::Keep);
    let plan = plan.await.unwrap();
    let since = plan.rows.since.unwrap();
    assert_eq!(plan.unremembered, [Unremembered::HandledBefore(since)], "{plan}");
    let plan = consumers.plan_replay("crates_before", from, Memory::Keep);
    let plan = plan.await.unwrap();
    assert_eq!(
        (plan.stream_sequence, plan.messages, plan.rows.handled),
        (2, 2, 3),
        "{plan}"
    );
    assert_eq!(plan.unremembered, [], "{plan}");
    consumers.replay(&plan).await.unwrap();
    resume(place, "crates_before").await;
    place.until_acknowledged("crates_before", 2).await;
}

async fn is_replayed_without_its_memory(place: &Place, from: StartAt) {
    let (consumers, _) = operator(place, None);
    let plan = consumers.plan_replay("crates_before", from, Memory::Forget);
    let plan = plan.await.unwrap();
    assert_eq!(plan.unremembered, [Unremembered::Everything]);
    for at in [("place", false), ("place", true)] {
        let (consumers, ended) = operator(place, Some(at));
        let error = consumers.replay(&plan).await.unwrap_err();
        assert!(
            matches!(error, ConsumersError::Subscriber(_)) && ended.load(Ordering::SeqCst),
            "{at:?}: {error}"
        );
        // Nothing is forgotten before the consumer stands at its new place.
        let rows = consumers.plan_replay("crates_before", from, Memory::Keep);
        assert_eq!(rows.await.unwrap().rows.handled, 3, "{at:?}");
    }
    let replayed = consumers.replay(&plan).await.unwrap();
    assert_eq!((replayed.messages, replayed.sequences), (3, 0));
    resume(place, "crates_before").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_moves_with_its_rows_on_the_newest_server_and_postgresql() {
    a_consumer_is_replayed_together_with_its_rows(NEWEST, POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_moves_with_its_rows_on_the_oldest_server_and_postgresql() {
    a_consumer_is_replayed_together_with_its_rows(OLDEST, POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_moves_with_its_rows_on_the_newest_server_and_mariadb() {
    a_consumer_is_replayed_together_with_its_rows(NEWEST, MARIADB).await;
}

//! Moves that break: at each act of the broker, before it is done and after.

use std::sync::{Arc, Mutex};

use outbox_core::{ConsumerAdmin, Foreseen, StartAt, Subscriber, SubscriberError};
use outbox_inbox::{Consumers, ConsumersError, Memory, PausedConsumers};
use outbox_testing::MemorySubscriber;

use super::shop::{Shop, before};
use crate::on_every_backend;
use crate::support::TestDb;

/// Where the connection to the broker breaks: before an act reaches it, or before its answer comes
/// back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    Before(&'static str),
    After(&'static str),
}

/// A connection that breaks once.
#[derive(Clone)]
struct Breaking {
    inner: MemorySubscriber,
    at: Arc<Mutex<Option<Break>>>,
}

impl Breaking {
    fn breaks(&self, at: Break) -> Result<(), SubscriberError> {
        let mut planned = self.at.lock().unwrap();
        if *planned != Some(at) {
            return Ok(());
        }
        *planned = None;
        Err(SubscriberError::Interrupted {
            context: format!("{at:?}"),
            source: None,
        })
    }
}

impl Subscriber for Breaking {
    type Subscription = <MemorySubscriber as Subscriber>::Subscription;

    outbox_testing::__forward!(double => double.inner; subscribe, facts, standing, belongs);
}

impl ConsumerAdmin for Breaking {
    async fn foresee(&self, consumer: &str, start_at: StartAt) -> Result<Foreseen, SubscriberError> {
        self.inner.foresee(consumer, start_at).await
    }

    async fn place(&self, consumer: &str, stream_sequence: u64) -> Result<(), SubscriberError> {
        self.breaks(Break::Before("place"))?;
        self.inner.place(consumer, stream_sequence).await?;
        self.breaks(Break::After("place"))
    }
}

async fn a_move_that_breaks_anywhere_goes_on_when_it_is_repeated(test: TestDb) {
    let shop = Shop::new(test).await;
    shop.drain(before::router()).await;
    for at in [Break::Before("place"), Break::After("place")] {
        let consumers = Consumers::new(
            shop.test.db.clone(),
            Breaking {
                inner: shop.broker.subscriber(),
                at: Arc::new(Mutex::new(Some(at))),
            },
        )
        .with_router(before::router());
        let pauses = PausedConsumers::new(shop.test.db.clone());
        pauses.resume("before").await.unwrap();
        shop.pause("before").await;
        let plan = consumers.plan_replay("before", StartAt::Beginning, Memory::Forget);
        let plan = plan.await.unwrap();
        let before = shop.effects().await;
        let broken = consumers.replay(&plan).await.unwrap_err();
        assert!(
            matches!(broken, ConsumersError::Subscriber(_)),
            "{at:?}: {broken}"
        );
        // The consumer is resumed too early: nothing takes effect twice.
        pauses.resume("before").await.unwrap();
        assert_eq!(shop.drain(before::router()).await.handled, 0, "{at:?}");
        shop.pause("before").await;
        consumers.replay(&plan).await.unwrap();
        pauses.resume("before").await.unwrap();
        shop.drain(before::router()).await;
        let twice: Vec<_> = before.iter().map(|effects| effects + 1).collect();
        assert_eq!(shop.effects().await, twice, "{at:?}");
    }
}

on_every_backend!(a_move_that_breaks_anywhere_goes_on_when_it_is_repeated);

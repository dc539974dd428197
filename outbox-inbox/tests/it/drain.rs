//! A drain beside a broker that does not say how much is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_core::{
    ConsumerSpec, ConsumerStanding, Message, StreamFacts, Subscriber, SubscriberError, Subscription,
};
use outbox_inbox::{Inbox, Router};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription};

use crate::runtime::within;
use crate::support::{Backend, Script, TestDb, book, placed, publish, slow};

/// Never answers the first question how much is left.
#[derive(Debug)]
struct Reticent {
    subscriber: MemorySubscriber,
    questions: Arc<AtomicU32>,
}

struct ReticentSubscription {
    subscription: MemorySubscription,
    questions: Arc<AtomicU32>,
}

impl Subscriber for Reticent {
    type Subscription = ReticentSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<ReticentSubscription, SubscriberError> {
        Ok(ReticentSubscription {
            subscription: self.subscriber.subscribe(consumer).await?,
            questions: self.questions.clone(),
        })
    }

    async fn facts(&self) -> Result<StreamFacts, SubscriberError> {
        self.subscriber.facts().await
    }

    async fn standing(&self, consumer: &str) -> Result<Option<ConsumerStanding>, SubscriberError> {
        self.subscriber.standing(consumer).await
    }

    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool {
        self.subscriber.belongs(message, subject, fixed)
    }
}

impl Subscription for ReticentSubscription {
    type Delivery = MemoryDelivery;

    async fn next(&mut self) -> Result<MemoryDelivery, SubscriberError> {
        self.subscription.next().await
    }

    async fn backlog(&mut self) -> Result<u64, SubscriberError> {
        if self.questions.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        self.subscription.backlog().await
    }

    async fn stop(&mut self) -> Vec<MemoryDelivery> {
        self.subscription.stop().await
    }

    async fn flush(&mut self) -> Result<(), SubscriberError> {
        self.subscription.flush().await
    }
}

#[tokio::test]
async fn a_question_that_is_not_answered_is_asked_again() {
    let test = TestDb::open(Backend::SqliteMemory, "reticent").await.unwrap();
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let questions = Arc::new(AtomicU32::new(0));
    let subscriber = Reticent {
        subscriber: broker.subscriber(),
        questions: questions.clone(),
    };
    let inbox = Inbox::new(test.db.clone(), subscriber)
        .with_router(Router::new().handler::<book>())
        .with_config(slow())
        .with_state(Script::ok());
    assert_eq!(within(inbox.drain()).await.unwrap().handled, 1);
    assert!(questions.load(Ordering::SeqCst) > 1);
}

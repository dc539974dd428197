//! A drain with a broker that does not report its backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_core::{ConsumerSpec, Subscriber, SubscriberError, Subscription};
use outbox_inbox::{Inbox, Router};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription};

use crate::runtime::within;
use crate::support::{Backend, Script, TestDb, book, placed, publish, slow};

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

    outbox_testing::__forward!(double => double.subscriber; facts, standing, belongs);
}

impl Subscription for ReticentSubscription {
    type Delivery = MemoryDelivery;

    async fn backlog(&mut self) -> Result<u64, SubscriberError> {
        if self.questions.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        self.subscription.backlog().await
    }

    outbox_testing::__forward!(double => double.subscription; next, stop, flush);
}

#[tokio::test]
async fn unanswered_backlog_request_is_repeated() {
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

//! Events with a fixed subject under strategy `sequence`.

use outbox_core::{
    ConsumerSpec, Delivery as _, DomainEvent, NewMessage, Subscriber, SubscriberError, Subscription,
};
use outbox_inbox::{Inbox, Router};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::within;
use crate::support::{TestDb, quick};

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "archived", subject = "archive.orders")]
struct OrderArchived {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

noting!(
    note_by_number,
    consumer = "whole",
    strategy = sequence(gap = "1h")
);

/// The in-memory broker selects by event type only.
#[derive(Debug)]
struct BySubject(MemorySubscriber);

struct AskedFor {
    subscription: MemorySubscription,
    fixed: Vec<&'static str>,
}

impl Subscriber for BySubject {
    type Subscription = AskedFor;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<AskedFor, SubscriberError> {
        let events = consumer.events.iter().chain(&consumer.siblings);
        Ok(AskedFor {
            subscription: self.0.subscribe(consumer).await?,
            fixed: events.filter_map(|event| event.subject).collect(),
        })
    }

    outbox_testing::__forward!(double => double.0; facts, standing, belongs);
}

impl Subscription for AskedFor {
    type Delivery = MemoryDelivery;

    async fn next(&mut self) -> Result<MemoryDelivery, SubscriberError> {
        loop {
            let delivery = self.subscription.next().await?;
            let subject = delivery.incoming().subject.as_str();
            if subject.starts_with("events.") || self.fixed.contains(&subject) {
                return Ok(delivery);
            }
            delivery.ack().await?;
        }
    }

    outbox_testing::__forward!(double => double.subscription; backlog, stop, flush);
}

async fn an_event_with_a_fixed_subject_leaves_no_gap(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let archived = NewMessage::from_event(&OrderArchived { order_id: 1 })
        .unwrap()
        .into_message(Some(2), OffsetDateTime::now_utc());
    assert_eq!(archived.subject.as_deref(), Some("archive.orders"));
    for message in [numbered(1, 1), archived, numbered(1, 3)] {
        put(&broker, &message).await;
    }
    let inbox = Inbox::new(test.db.clone(), BySubject(broker.subscriber()))
        .with_router(Router::new().handler::<note_by_number>())
        .with_config(quick())
        .with_state(orders);
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!(
        (report.handled, report.skipped, report.dead_letters),
        (2, 1, 0),
        "{report:?}"
    );
    assert_eq!(lines(&test, "whole", 1).await, [1, 3]);
}

on_every_backend!(an_event_with_a_fixed_subject_leaves_no_gap);

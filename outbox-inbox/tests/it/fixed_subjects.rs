//! Events with a fixed subject under strategy `sequence`.

use outbox_core::{DomainEvent, NewMessage};
use outbox_inbox::Router;
use outbox_testing::MemoryBroker;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::within;
use crate::support::TestDb;

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
    let inbox = test
        .inbox(&broker, Router::new().handler::<note_by_number>())
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

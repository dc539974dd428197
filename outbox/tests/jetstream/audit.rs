//! Tests of handlers for undecoded messages: wildcards over event and aggregate types, unknown
//! event types, and entries that are not outbox messages.

use outbox::core::{Message, NewMessage, Publisher as _};
use outbox::inbox::{DeadLetterSelection, DeadLetters, RawMessage, Router};
use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::testing::eventually;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::place::{NEWEST, OLDEST, Place, Process, note};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "invoice", name = "sent")]
struct InvoiceSent {
    #[domain_event(aggregate_id)]
    invoice: u32,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "invoice", name = "paid")]
struct InvoicePaid {
    #[domain_event(aggregate_id)]
    invoice: u32,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "reminder", name = "sent")]
struct ReminderSent {
    #[domain_event(aggregate_id)]
    reminder: u32,
}

fn line(message: &RawMessage) -> String {
    let payload = String::from_utf8_lossy(&message.payload);
    format!(
        "{} v{} {:?} {} {payload}",
        message.event_type, message.event_version, message.sequence, message.aggregate.id
    )
}

#[idempotent_handler(consumer = "invoice_audit", messages = ["invoice.*"])]
async fn keep_invoices(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    note(&tx, "invoice_audit", &line(&message)).await
}

#[idempotent_handler(consumer = "audit", messages = ["*"])]
async fn keep_all(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    note(&tx, "audit", &line(&message)).await
}

fn disputed() -> Message {
    let known = NewMessage::from_event(&InvoicePaid { invoice: 1 }).unwrap();
    Message {
        event_type: "invoice.disputed".to_owned(),
        event_version: 7,
        ..known.into_message(Some(3), OffsetDateTime::now_utc())
    }
}

/// Publishes messages of another program. The first subject matches both subject wildcards of the
/// handlers, the second subject only `*`.
async fn publish_foreign(place: &Place) {
    let jetstream = jetstream::new(place.client.clone());
    let prefix = place.stream.name();
    for subject in [format!("{prefix}.invoice.1.sent"), format!("{prefix}.hello")] {
        let stored = jetstream
            .publish(subject, "written by hand".into())
            .await
            .unwrap();
        stored.await.unwrap();
    }
}

async fn wildcards_receive_each_message_once(nats: &'static str) {
    let Some(place) = Place::open(nats).await else {
        return;
    };
    place.publish([InvoiceSent { invoice: 1 }]).await;
    publish_foreign(&place).await;
    place.publish([InvoicePaid { invoice: 1 }]).await;
    place.publish([ReminderSent { reminder: 9 }]).await;
    let publisher = place.stream.publisher(place.client.clone());
    publisher.publish(&disputed()).await.unwrap();

    let router = Router::new().handler::<keep_invoices>().handler::<keep_all>();
    let inbox = Inbox::new(place.db.clone(), place.stream.subscriber(place.client.clone()));
    let process = Process::start(inbox.with_router(router));
    let letters = DeadLetters::new(place.db.clone());
    eventually("all effects and dead letters", async || {
        place.noted("invoice_audit").await.len() == 3
            && place.noted("audit").await.len() == 4
            && letters.count(&DeadLetterSelection::all()).await.unwrap() == 3
    })
    .await;
    place.until_acknowledged("invoice_audit", 4).await;
    place.until_acknowledged("audit", 6).await;
    let report = process.stop().await;
    assert_eq!((report.handled, report.dead_letters), (7, 3), "{report:?}");

    let invoices = [
        r#"invoice.disputed v7 Some(3) 1 {"invoice":1}"#,
        r#"invoice.paid v1 Some(2) 1 {"invoice":1}"#,
        r#"invoice.sent v1 Some(1) 1 {"invoice":1}"#,
    ];
    assert_eq!(place.noted("invoice_audit").await, invoices);
    let all = [&invoices[..], &[r#"reminder.sent v1 Some(1) 9 {"reminder":9}"#]].concat();
    assert_eq!(place.noted("audit").await, all);
    for (consumer, expected) in [("invoice_audit", 1), ("audit", 2)] {
        let of_consumer = DeadLetterSelection::consumer(consumer);
        let of_consumer = letters.list(&of_consumer, 10).await.unwrap();
        assert_eq!(of_consumer.len(), expected, "{consumer}");
        assert!(
            of_consumer
                .iter()
                .all(|letter| letter.raw_payload() == b"written by hand"),
            "{of_consumer:?}"
        );
    }
    let filter = async |consumer| place.durable(consumer).await.unwrap().config.filter_subject;
    let name = place.stream.name();
    assert_eq!(filter("invoice_audit").await, format!("{name}.invoice.*.*"));
    assert_eq!(filter("audit").await, "");
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wildcards_receive_each_message_once_on_the_newest_server() {
    wildcards_receive_each_message_once(NEWEST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wildcards_receive_each_message_once_on_the_oldest_server() {
    wildcards_receive_each_message_once(OLDEST).await;
}

//! Sensitive fields: people see masks, programs see values.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outbox_core::{DomainEvent, MaskedPayload, NewMessage, Publisher as _, SensitiveFields};
use outbox_inbox::{
    DeadLetterSelection, DeadLetters, Event, HandlerError, HandlerState, Router, Tx, idempotent_handler,
};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::on_every_backend;
use crate::runtime::within;
use crate::support::{Backend, TestDb, message, publish};
use crate::traces::listen;

const SECRET: &str = "CANARY";
const BYTES_OF_SECRET: &str = "67, 65, 78";

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "addressed")]
#[serde(rename_all = "camelCase")]
struct OrderAddressed {
    #[domain_event(aggregate_id)]
    order_id: u64,
    units: u32,
    #[domain_event(sensitive)]
    ship_to: Address,
    #[domain_event(sensitive)]
    #[serde(alias = "mail")]
    email: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Address {
    street: String,
}

fn addressed(order_id: u64) -> OrderAddressed {
    OrderAddressed {
        order_id,
        units: 2,
        ship_to: Address {
            street: SECRET.to_owned(),
        },
        email: SECRET.to_owned(),
    }
}

#[derive(Clone, Default)]
struct Mended(Arc<AtomicBool>);

#[idempotent_handler(consumer = "labels", attempts = 2)]
async fn print_label(
    event: Event<OrderAddressed>,
    tx: Tx<'_>,
    mended: HandlerState<Mended>,
) -> Result<(), HandlerError> {
    tracing::info!(?event, "a label is printed");
    if !mended.0.0.load(Ordering::SeqCst) {
        return match event.order_id {
            0 => panic!("the printer is on fire"),
            _ => Err(HandlerError::retry("the printer has no paper")),
        };
    }
    let sql = format!(
        "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('labels', {}, '{}')",
        event.order_id, event.ship_to.street
    );
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

async fn deliver(test: &TestDb, broker: &MemoryBroker, mended: &Mended) {
    for order_id in [0, 1] {
        publish(broker, &addressed(order_id)).await;
    }
    for (order_id, payload) in [
        (
            2,
            format!(r#"{{"orderId":2,"units":2,"shipTo":"{SECRET}","email":"{SECRET}"}}"#),
        ),
        (3, format!(r#"["{SECRET}", 1, {{"street":"{SECRET}"}}, 5]"#)),
        (4, format!(r#"{{"orderId":4,"email":"{SECRET}""#)),
    ] {
        let mut damaged = message(&addressed(order_id));
        damaged.payload = payload.into();
        broker.publisher().publish(&damaged).await.unwrap();
    }
    broker.inject(
        "foreign",
        vec![("who".to_owned(), SECRET.to_owned())],
        SECRET.as_bytes(),
    );
    inbox(test, broker, mended).drain().await.unwrap();
}

fn inbox(
    test: &TestDb,
    broker: &MemoryBroker,
    mended: &Mended,
) -> outbox_inbox::Inbox<outbox_testing::MemorySubscriber> {
    let inbox = test.inbox(broker, Router::new().handler::<print_label>());
    inbox.with_state(mended.clone())
}

fn shows_none(values: &[&dyn Debug]) {
    for value in values {
        let shown = format!("{value:?} {value:#?}");
        assert!(
            !shown.contains(SECRET) && !shown.contains(BYTES_OF_SECRET),
            "{shown}"
        );
    }
}

async fn sensitive_fields_are_masked_for_display(test: TestDb) {
    let (broker, mended) = (MemoryBroker::new(), Mended::default());
    deliver(&test, &broker, &mended).await;
    let letters = DeadLetters::new(test.db.clone());
    let all = letters.list(&DeadLetterSelection::all(), 10).await.unwrap();
    let fields = SensitiveFields::linked();
    let mut shown: Vec<_> = all
        .iter()
        .map(|letter| letter.masked_payload(&fields).to_string())
        .collect();
    shown.sort();
    assert_eq!(
        shown,
        [
            "*** (29 bytes that cannot be shown field by field)",
            "*** (37 bytes that cannot be shown field by field)",
            "*** (6 bytes of an unknown event type)",
            r#"{"email":"***","orderId":0,"shipTo":"***","units":2}"#,
            r#"{"email":"***","orderId":1,"shipTo":"***","units":2}"#,
            r#"{"email":"***","orderId":2,"shipTo":"***","units":2}"#,
        ]
    );
    for letter in &all {
        assert!(!letter.error.contains(SECRET), "{}", letter.error);
        shows_none(&[letter]);
        let MaskedPayload::UnknownEvent { bytes } = letter.masked_payload(&SensitiveFields::new()) else {
            panic!("{letter:?}")
        };
        assert_eq!(bytes, letter.raw_payload().len());
    }
    let errors = "SELECT count(*) FROM inbox_messages WHERE last_error LIKE '%CANARY%'";
    assert_eq!(test.int(errors).await, 0);

    let (event, recorded) = (addressed(1), NewMessage::from_event(&addressed(1)).unwrap());
    let message = message(&event);
    let encoded = outbox_core::codec::encode(&message, "shop");
    shows_none(&[
        &Event(event.clone()),
        &vec![Event(event)],
        &recorded,
        &message,
        &encoded,
    ]);
    shows_none(&[&outbox_core::payload::with::<outbox_core::Json, _>(&addressed(1)).unwrap()]);
    shows_none(
        &broker
            .messages()
            .iter()
            .map(|message| message as &dyn Debug)
            .collect::<Vec<_>>(),
    );

    mended.0.store(true, Ordering::SeqCst);
    assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 6);
    inbox(&test, &broker, &mended).drain().await.unwrap();
    let printed = "SELECT count(*) FROM effects WHERE stable_key = 'CANARY'";
    assert_eq!(test.int(printed).await, 2);
    assert_eq!(letters.count(&DeadLetterSelection::all()).await.unwrap(), 4);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }

    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, _: &tracing::Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &tracing::Id, values: &tracing::span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }
}

#[tokio::test]
async fn no_payload_is_logged() {
    let log = Log::default();
    let _listening = listen(tracing_subscriber::registry().with(log.clone()));
    let test = TestDb::open(Backend::SqliteMemory, "no_payload_is_logged")
        .await
        .unwrap();
    let (broker, mended) = (MemoryBroker::new(), Mended::default());
    within(deliver(&test, &broker, &mended)).await;
    let letters = DeadLetters::new(test.db.clone());
    assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 6);
    within(inbox(&test, &broker, &mended).drain()).await.unwrap();
    let aggregate = outbox_core::Aggregate::new("order", "1");
    assert_eq!(letters.erase(&aggregate).await.unwrap().erased, 1);
    let log = log.0.lock().unwrap();
    for said in [
        "a label is printed",
        "the printer has no paper",
        "cannot be decoded",
        "were erased",
    ] {
        assert!(log.contains(said), "{said} is not in the log:\n{log}");
    }
    let shows = |line: &&str| line.contains(SECRET) || line.contains(BYTES_OF_SECRET);
    let quoted: Vec<_> = log.lines().filter(shows).collect();
    assert!(quoted.is_empty(), "{quoted:#?}");
}

on_every_backend!(sensitive_fields_are_masked_for_display);

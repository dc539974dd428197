//! Handlers of undecoded messages.

use outbox_core::payload::{Codec, CodecError, Decode, Encode};
use outbox_core::{DomainEvent, Message, Publisher as _};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, RawMessage, Router, Tx, UnknownVersion, idempotent_handler};
use outbox_testing::MemoryBroker;
use sea_orm::{ConnectionTrait as _, Statement};
use serde::{Deserialize, Serialize};

use crate::dead_letter::OrderPlacedV2;
use crate::on_every_backend;
use crate::runtime::{spawn, stop, until_delivered};
use crate::support::{OrderBooked, Script, TestDb, book, message, placed, publish, quick};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "discarded")]
struct OrderDiscarded {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "parcel", name = "scanned", codec = Label)]
struct ParcelScanned {
    #[domain_event(aggregate_id)]
    parcel: u64,
    label: Vec<u8>,
}

struct Label;

impl Codec for Label {
    const CONTENT_TYPE: &'static str = "application/x-label";
}

impl Encode<ParcelScanned> for Label {
    fn encode(event: &ParcelScanned) -> Result<Vec<u8>, CodecError> {
        Ok(event.label.clone())
    }
}

impl Decode<ParcelScanned> for Label {
    fn decode(message: &Message) -> Result<ParcelScanned, CodecError> {
        if message.payload.is_empty() {
            return Err("the label is empty".into());
        }
        Ok(ParcelScanned {
            parcel: message.aggregate.id.parse()?,
            label: message.payload.to_vec(),
        })
    }
}

const LABEL: &[u8] = &[0, 159, 146, 150, b'\n', 0xff];

fn scanned(parcel: u64) -> ParcelScanned {
    ParcelScanned {
        parcel,
        label: LABEL.to_vec(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn keep(tx: &Tx<'_>, handler: &str, message: &RawMessage) -> Result<(), HandlerError> {
    let sql = format!(
        "INSERT INTO kept (handler, event_id, event_type, content_type, payload) VALUES ('{handler}', '{}', '{}', '{}', '{}')",
        message.event_id,
        message.event_type,
        message.content_type,
        hex(&message.payload)
    );
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

#[idempotent_handler(consumer = "audit", messages = ["*"])]
async fn keep_all(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    keep(&tx, "all", &message).await
}

#[idempotent_handler(consumer = "counting", messages = ["order.*"], strategy = sequence)]
async fn keep_in_order(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    keep(&tx, "in-order", &message).await
}

#[idempotent_handler(consumer = "books", messages = ["order.*"])]
async fn keep_orders(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    keep(&tx, "orders", &message).await
}

#[idempotent_handler(consumer = "books", messages = ["order.discarded"])]
async fn keep_discarded(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    keep(&tx, "discarded", &message).await
}

#[idempotent_handler(consumer = "books", messages = ["*"])]
async fn keep_rest(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    keep(&tx, "rest", &message).await
}

#[idempotent_handler(consumer = "labels")]
async fn store_label(
    event: Event<ParcelScanned>,
    message: RawMessage,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    let again: ParcelScanned = message.decode().map_err(HandlerError::fatal)?;
    assert_eq!((event.parcel, event.label.as_slice()), (again.parcel, LABEL));
    keep(&tx, "label", &message).await
}

async fn tables(test: &TestDb) {
    test.execute(
        "CREATE TABLE kept (handler VARCHAR(16), event_id VARCHAR(36), event_type VARCHAR(64), content_type VARCHAR(64), payload VARCHAR(2000))",
    )
    .await;
}

async fn kept(test: &TestDb, handler: &str) -> Vec<(String, String, String)> {
    let sql = format!(
        "SELECT event_type, content_type, payload FROM kept WHERE handler = '{handler}' ORDER BY 1, 3"
    );
    let rows = test
        .db
        .query_all_raw(Statement::from_string(test.sql_backend(), sql))
        .await
        .unwrap();
    let text = |row: &sea_orm::QueryResult, index| row.try_get_by_index::<String>(index).unwrap();
    rows.iter()
        .map(|row| (text(row, 0), text(row, 1), text(row, 2)))
        .collect()
}

async fn kept_types(test: &TestDb, handler: &str) -> Vec<String> {
    kept(test, handler)
        .await
        .into_iter()
        .map(|(event_type, _, _)| event_type)
        .collect()
}

async fn audit_consumer_stores_each_message_once(test: TestDb) {
    tables(&test).await;
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    publish(&broker, &OrderDiscarded { order_id: 1 }).await;
    publish(&broker, &OrderPlacedV2 { order_id: 2 }).await;
    publish(&broker, &scanned(7)).await;
    let unknown = Message {
        event_type: "foreign.happened".to_owned(),
        aggregate: outbox_core::Aggregate::new("foreign", "x"),
        content_type: "application/protobuf".to_owned(),
        ..message(&scanned(8))
    };
    broker.publisher().publish(&unknown).await.unwrap();
    broker.duplicate_deliveries(usize::MAX);

    let router = Router::new()
        .handler::<keep_all>()
        .handler::<book>()
        .handler::<store_label>();
    let inbox = test.inbox(&broker, router).with_state(Script::ok());
    let report = inbox.drain().await.unwrap();
    assert_eq!(
        (report.handled, report.dead_letters),
        (5 + 1 + 1, 1),
        "{report:?}"
    );

    let json = "application/json";
    let of = |event_type: &str, content_type: &str, payload: &[u8]| {
        (event_type.to_owned(), content_type.to_owned(), hex(payload))
    };
    let expected = [
        of("foreign.happened", "application/protobuf", LABEL),
        of("order.discarded", json, br#"{"order_id":1}"#),
        of("order.placed", json, br#"{"order_id":1,"line":0}"#),
        of("order.placed", json, br#"{"order_id":2}"#),
        of("parcel.scanned", "application/x-label", LABEL),
    ];
    assert_eq!(kept(&test, "all").await, expected);
    assert_eq!(
        kept(&test, "label").await,
        [of("parcel.scanned", "application/x-label", LABEL)]
    );
    assert_eq!(test.effects("books", 1).await, 1);
    assert_eq!(dead_letters(&test.db, "books").await.unwrap().len(), 1);
    assert_eq!(dead_letters(&test.db, "audit").await.unwrap().len(), 0);
}

async fn within_one_consumer_the_narrowest_handler_gets_a_message(test: TestDb) {
    tables(&test).await;
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    publish(&broker, &OrderDiscarded { order_id: 1 }).await;
    publish(&broker, &OrderBooked { order_id: 1 }).await;
    publish(&broker, &scanned(7)).await;
    let router = Router::new()
        .handler::<keep_rest>()
        .handler::<keep_orders>()
        .handler::<keep_discarded>()
        .handler::<book>();
    let inbox = test.inbox(&broker, router).with_state(Script::ok());
    assert_eq!(inbox.drain().await.unwrap().handled, 4);
    assert_eq!(test.effects("books", 1).await, 1);
    assert_eq!(kept_types(&test, "discarded").await, ["order.discarded"]);
    assert_eq!(kept_types(&test, "orders").await, ["order.booked"]);
    assert_eq!(kept_types(&test, "rest").await, ["parcel.scanned"]);
}

async fn wildcard_leaves_versions_handled_elsewhere(test: TestDb) {
    tables(&test).await;
    let broker = MemoryBroker::new();
    publish(&broker, &OrderPlacedV2 { order_id: 2 }).await;
    let router = Router::new().handler::<keep_rest>().handler::<book>();
    let config = quick().unknown_version(UnknownVersion::Retry);
    let inbox = test
        .inbox(&broker, router)
        .with_state(Script::ok())
        .with_config(config);
    let (shutdown, run) = spawn(inbox);
    until_delivered(&broker, "books", 3).await;
    let report = stop((shutdown, run)).await;
    assert!(report.handled == 0 && report.sent_back > 0, "{report:?}");
    assert_eq!(kept_types(&test, "rest").await, [""; 0]);
}

async fn process_without_wildcard_returns_selected_messages(test: TestDb) {
    tables(&test).await;
    let broker = MemoryBroker::new();
    let with = Router::new().handler::<keep_orders>().handler::<book>();
    let without = Router::new().handler::<book>();
    let start = |router: &Router| test.inbox(&broker, router.clone()).with_state(Script::ok());
    assert_eq!(start(&with).drain().await.unwrap().handled, 0);

    publish(&broker, &OrderDiscarded { order_id: 1 }).await;
    let (shutdown, run) = spawn(start(&without));
    until_delivered(&broker, "books", 3).await;
    let report = stop((shutdown, run)).await;
    assert!(
        report.handled == 0 && report.skipped == 0 && report.sent_back > 0,
        "{report:?}"
    );

    assert_eq!(start(&with).drain().await.unwrap().handled, 1);
    assert_eq!(kept_types(&test, "orders").await, ["order.discarded"]);
}

async fn undecoded_messages_follow_the_numbers_of_an_aggregate(test: TestDb) {
    tables(&test).await;
    let broker = MemoryBroker::new();
    let numbered = |sequence, message: Message| Message {
        sequence: Some(sequence),
        ..message
    };
    let messages = [
        numbered(1, message(&placed(1))),
        numbered(3, message(&OrderBooked { order_id: 1 })),
        numbered(2, message(&OrderDiscarded { order_id: 1 })),
    ];
    for message in &messages {
        broker.publisher().publish(message).await.unwrap();
    }
    broker.duplicate_deliveries(usize::MAX);
    let inbox = test.inbox(&broker, Router::new().handler::<keep_in_order>());
    assert_eq!(inbox.drain().await.unwrap().handled, 3);
    let types = kept_types(&test, "in-order").await;
    assert_eq!(types, ["order.booked", "order.discarded", "order.placed"]);
}

on_every_backend!(
    audit_consumer_stores_each_message_once,
    within_one_consumer_the_narrowest_handler_gets_a_message,
    wildcard_leaves_versions_handled_elsewhere,
    process_without_wildcard_returns_selected_messages,
    undecoded_messages_follow_the_numbers_of_an_aggregate,
);

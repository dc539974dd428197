//! Follow-up events.

use outbox_core::{Limits, MessageContext, Relay, wake};
use outbox_inbox::testing::Outcome;
use outbox_inbox::{Event, HandlerError, Tx, idempotent_handler};
use outbox_sea_orm::{OutboxConfig, SqlStore};
use outbox_testing::MemoryBroker;

use crate::on_every_backend;
use crate::support::{OrderBooked, OrderPlaced, Script, Step, TestDb, as_a_library, book, message, placed};

async fn follow_ups_commit_and_roll_back_with_the_effect(test: TestDb) {
    let harness = test.harness(&Script::new([Step::Fail], Step::Ok));
    let cause = message(&placed(1));
    harness.deliver_message::<book>(&cause).await.unwrap();
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (0, 0));
    harness.redeliver_message::<book>(&cause, 2).await.unwrap();
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (1, 1));
}

async fn follow_ups_name_their_cause(test: TestDb) {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let context = MessageContext {
        correlation_id: Some("request-17".to_owned()),
        traceparent: Some(traceparent.to_owned()),
        ..MessageContext::default()
    };
    let linked = context.scope(async { message(&placed(1)) }).await;
    let unlinked = message(&placed(2));
    let harness = test.harness(&Script::ok());
    harness.deliver_message::<book>(&linked).await.unwrap();
    harness.deliver_message::<book>(&unlinked).await.unwrap();

    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(test.db.clone()), broker.publisher())
        .drain()
        .await
        .unwrap();
    let context_of = |order: &str| {
        let messages = broker.messages();
        let follow_up = messages
            .iter()
            .find(|message| message.aggregate.id == order)
            .unwrap();
        assert_eq!(follow_up.event_type, "order.booked");
        MessageContext::from_headers(&follow_up.headers)
    };
    let first = context_of("1");
    assert_eq!(first.correlation_id.as_deref(), Some("request-17"));
    assert_eq!(first.causation_id, Some(linked.id.to_string()));
    assert_eq!(first.traceparent.as_deref(), Some(traceparent));
    let second = context_of("2");
    assert_eq!(second.correlation_id, Some(unlinked.id.to_string()));
    assert_eq!(second.causation_id, Some(unlinked.id.to_string()));
}

#[idempotent_handler(consumer = "library")]
async fn call_a_library(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    use sea_orm::ConnectionTrait as _;
    let order_id = event.order_id;
    let effect = format!("INSERT INTO effects (consumer, order_id) VALUES ('library', {order_id})");
    tx.execute_unprepared(&effect).await?;
    assert_eq!(as_a_library(&tx, order_id).await?, 1);
    tx.execute_unprepared(&effect).await?;
    Ok(())
}

async fn a_library_records_in_the_transaction_of_the_handler(test: TestDb) {
    let harness = test.harness(&Script::ok());
    let outcome = harness.deliver::<call_a_library>(&placed(1)).await.unwrap();
    assert_eq!(outcome, Outcome::Handled);
    assert_eq!(
        (test.effects("library", 1).await, test.follow_ups().await),
        (2, 1)
    );
}

async fn a_follow_up_over_the_limit_is_an_error(test: TestDb) {
    let limits = Limits::default().payload_bytes_max(5);
    let harness = test
        .harness(&Script::ok())
        .with_outbox(OutboxConfig::default().with_limits(limits));
    assert_eq!(
        harness.deliver::<book>(&placed(1)).await.unwrap(),
        Outcome::Failed
    );
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (0, 0));
}

on_every_backend!(
    follow_ups_commit_and_roll_back_with_the_effect,
    follow_ups_name_their_cause,
    a_library_records_in_the_transaction_of_the_handler,
    a_follow_up_over_the_limit_is_an_error,
);

/// The nested transaction must record into the inbox's configured tables, not into the default
/// outbox tables.
#[idempotent_handler(consumer = "nested")]
async fn record_nested(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let nested = tx.begin().await?;
    outbox_sea_orm::record(
        &nested,
        [OrderBooked {
            order_id: event.order_id,
        }],
    )
    .await?;
    nested.commit().await?;
    Ok(())
}

#[tokio::test]
async fn nested_transaction_records_in_the_outbox_of_its_handler() {
    let test = TestDb::open(crate::support::Backend::SqliteMemory, "nested")
        .await
        .expect("SQLite is always there");
    let names = outbox_sea_orm::TableNames::new().with_prefix("shop_").unwrap();
    outbox_sea_orm::migration::migrate_with(&test.db, &names)
        .await
        .unwrap();
    let harness = test
        .harness(&Script::ok())
        .with_outbox(OutboxConfig::default().with_names(names));
    let mut commits = wake::Listener::new();
    let outcome = harness.deliver::<record_nested>(&placed(1)).await.unwrap();
    assert_eq!(outcome, Outcome::Handled);
    assert_eq!(test.int("SELECT COUNT(*) FROM shop_outbox_messages").await, 1);
    assert_eq!(test.int("SELECT COUNT(*) FROM outbox_messages").await, 0);
    commits.notified().await;
}

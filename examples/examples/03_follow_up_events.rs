//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 03_follow_up_events`
//!
//! A chain of consumers on JetStream. `shipping` records a follow-up event for each placed order,
//! in the transaction of its own effect. `notifications` handles the follow-up event.

use outbox::nats;
use outbox::prelude::*;
use outbox::testing::TestDatabase;
use sea_orm::entity::prelude::*;
use sea_orm::{Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

mod shipment {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "shipments")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub order_id: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "dispatched")]
struct ShipmentDispatched {
    #[domain_event(aggregate_id)]
    order_id: i64,
}

#[idempotent_handler(consumer = "shipping")]
async fn ship(event: Event<OrderPlaced>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    let shipment = shipment::ActiveModel {
        order_id: Set(event.order_id),
    };
    shipment.insert(&tx).await?;
    outbox
        .record([ShipmentDispatched {
            order_id: event.order_id,
        }])
        .await?;
    Ok(())
}

#[idempotent_handler(consumer = "notifications")]
async fn notify(
    event: Event<ShipmentDispatched>,
    metadata: Metadata,
    notices: HandlerState<mpsc::UnboundedSender<String>>,
) -> Result<(), HandlerError> {
    // The follow-up event names its cause: the order's message.
    let caused = metadata.context().causation_id.is_some();
    notices.send(format!(
        "order {} is on its way (names its cause: {caused})",
        event.order_id
    ))?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("info,sqlx=warn,async_nats=warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder()
        .register(shipment::Entity)
        .apply(&db)
        .await?;

    let tx = db.begin().await?;
    record(
        &tx,
        (1..=3)
            .map(|order_id| OrderPlaced { order_id })
            .collect::<Vec<_>>(),
    )
    .await?;
    tx.commit().await?;

    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    // A separate stream and prefix, so that the example does not affect other streams. A service
    // keeps the defaults `EVENTS` and `events`.
    let stream = EventStream::new("EXAMPLE_03").with_prefix("example03")?;
    let client = stream.connect(url).await?;
    let _ = nats::async_nats::jetstream::new(client.clone())
        .delete_stream(stream.name())
        .await;
    stream.provision(&client).await?;

    let relay = stream.relay(relay_db, client.clone());
    let (sent, mut notices) = mpsc::unbounded_channel::<String>();
    let inbox = stream.inbox(db, client).with_state(sent);

    let shutdown = CancellationToken::new();
    let all_sent = async {
        let mut texts = Vec::new();
        while texts.len() < 3
            && let Some(notice) = shutdown.run_until_cancelled(notices.recv()).await
        {
            texts.extend(notice);
        }
        shutdown.cancel();
        texts.sort();
        texts
    };
    // A service calls `run`, which ends with Ctrl-C or SIGTERM. If relay or inbox fails, the other
    // ends too.
    let runner = Runner::new().with_relay(relay).with_inbox(inbox);
    let (report, texts) = tokio::join!(runner.run_until(shutdown.clone()), all_sent);
    let report = report?;
    println!("{}", texts.join("\n"));
    println!(
        "relay published {}, inbox handled {}",
        report.relays[0].published, report.inboxes[0].handled
    );
    Ok(())
}

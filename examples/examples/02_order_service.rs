//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 02_order_service`
//!
//! The producing side on JetStream: orders are saved with their events, the relay publishes, and
//! the stream shows subjects and sequences. Needs a nats-server with JetStream (`nats-server -js`).

use outbox::nats;
use outbox::prelude::*;
use outbox::testing::TestDatabase;
use sea_orm::{IntoActiveModel, Set};
use serde::{Deserialize, Serialize};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        // The client assigns the key, so a new order is saved with `insert_with_events`.
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub total_cents: i64,
        pub shipped: bool,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// One event per variant. `untagged`: the payload has only the fields, because the header `ce-type`
/// already names the event.
#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order")]
#[serde(untagged)]
enum OrderEvent {
    #[domain_event(name = "placed")]
    Placed {
        #[domain_event(aggregate_id)]
        order_id: String,
        total_cents: i64,
    },
    #[domain_event(name = "shipped")]
    Shipped {
        #[domain_event(aggregate_id)]
        order_id: String,
    },
}

/// A domain method changes the order and raises the event; the next save records it. `raise_with`
/// builds the event from the saved row, with all generated values; `raise` takes a complete event.
fn ship(order: &mut AggregateRoot<order::ActiveModel>) {
    order.shipped = Set(true);
    order.raise_with(|order| {
        [OrderEvent::Shipped {
            order_id: order.id.clone(),
        }]
    });
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("info,sqlx=warn,async_nats=warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder().register(order::Entity).apply(&db).await?;

    // The ids with a dot and a non-ASCII letter show how a subject encodes ids.
    for id in ["A-1", "B.2", "Ü"] {
        let order = order::ActiveModel {
            id: Set(id.to_owned()),
            total_cents: Set(1999),
            shipped: Set(false),
        }
        .insert_with_events(&db, |order| {
            [OrderEvent::Placed {
                order_id: order.id.clone(),
                total_cents: order.total_cents,
            }]
        })
        .await?;
        if id == "A-1" {
            let mut order = AggregateRoot::new(order.into_active_model());
            ship(&mut order);
            order.update(&db).await?;
        }
    }

    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    // A separate stream and prefix, so that the example does not affect other streams. A service
    // keeps the defaults `EVENTS` and `events`.
    let stream = EventStream::new("EXAMPLE_02").with_prefix("example02")?;
    let client = stream.connect(url).await?;
    let _ = nats::async_nats::jetstream::new(client.clone())
        .delete_stream(stream.name())
        .await;
    stream.provision(&client).await?;

    let config = PublisherConfig::default().source("order-service");
    let publisher = stream.publisher(client.clone()).with_config(config);
    let report = Relay::new(SqlStore::new(relay_db), publisher).drain().await?;
    println!("published {} messages", report.published);

    let mut lines = Vec::new();
    let stored = nats::async_nats::jetstream::new(client)
        .get_stream(stream.name())
        .await?;
    for stream_sequence in 1..=report.published {
        let message = stored.get_raw_message(stream_sequence).await?;
        let header = |name| {
            message
                .headers
                .get(name)
                .map(|value| value.as_str())
                .unwrap_or_default()
        };
        lines.push(format!(
            "{} is {} v{}, number {} of the order",
            message.subject,
            header("ce-type"),
            header("ce-eventversion"),
            header("ce-sequence"),
        ));
    }
    lines.sort(); // Only the events of one order keep their order.
    println!("{}", lines.join("\n"));
    Ok(())
}

//! `DATABASE_URL=postgres://… NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 16_postgres_jetstream`
//!
//! Service, relay and consumer on PostgreSQL and a real JetStream, in one process: an order is saved together with its event, the relay publishes the
//! event, and a handler takes the units from the stock. The program ends when the event has taken effect.

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Catalogue, DomainEvent, Relay};
use outbox_inbox::{Event, HandlerError, Inbox, Tx, idempotent_handler};
use outbox_nats::async_nats::jetstream;
use outbox_nats::{
    JetStreamPublisher, JetStreamSubscriber, PublisherConfig, StreamSpec, SubjectPrefix, SubscriberConfig,
    connect, connect_options, provision_stream,
};
use outbox_sea_orm::{SaveWithEvents, SqlStore};
use sea_orm::{
    ActiveModelTrait, ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr, EntityTrait,
    IntoActiveModel, QuerySelect, Schema, Set,
};
use serde::{Deserialize, Serialize};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub product: String,
        pub units: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod stock {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "stock")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub product: String,
        pub units: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
    units: i32,
}

/// Runs in the transaction that also records that the event was handled.
#[idempotent_handler(consumer = "example16-inventory")]
async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let product = stock::Entity::find_by_id(event.product.clone())
        .lock_exclusive()
        .one(&tx)
        .await?
        .ok_or_else(|| HandlerError::fatal("this product is not in stock"))?;
    let units = product.units - event.units;
    let mut product = product.into_active_model();
    product.units = Set(units);
    product.update(&tx).await?;
    println!(
        "reserved {} {} for order {}",
        event.units, event.product, event.order_id
    );
    Ok(())
}

/// A pool. Its tables are in a schema of their own, so that the example disturbs nothing.
async fn pool(connections: u32) -> Result<DatabaseConnection, Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new(std::env::var("DATABASE_URL")?);
    options
        .max_connections(connections)
        .set_schema_search_path("example_16")
        .sqlx_logging(false); // Otherwise each statement of the relay is a line in the log.
    Ok(Database::connect(options).await?)
}

/// Tables of the application, of the outbox and of the inbox. The schema is made anew, so that each run prints the same lines.
async fn create_tables(db: &DatabaseConnection) -> Result<(), DbErr> {
    db.execute_unprepared("DROP SCHEMA IF EXISTS example_16 CASCADE")
        .await?;
    db.execute_unprepared("CREATE SCHEMA example_16").await?;
    let schema = Schema::new(db.get_database_backend());
    db.execute(&schema.create_table_from_entity(order::Entity))
        .await?;
    db.execute(&schema.create_table_from_entity(stock::Entity))
        .await?;
    outbox_sea_orm::migrate(db).await?;
    outbox_inbox::migrate(db).await?;
    let chai = stock::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(39),
    };
    chai.insert(db).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // What relay and inbox have to say goes to `tracing`; without a subscriber it is lost.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let db = pool(10).await?;
    create_tables(&db).await?;

    // The stream. A service keeps the defaults `EVENTS` and `events`, and deletes nothing.
    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let client = connect(url, connect_options()).await?;
    let (stream, prefix) = ("EXAMPLE_16", SubjectPrefix::new("example16")?);
    let _ = jetstream::new(client.clone()).delete_stream(stream).await;
    let spec = StreamSpec::default().name(stream).prefix(prefix.clone());
    provision_stream(&client, &spec, Catalogue::linked()?.iter()).await?;

    // The service: order and event in one transaction. The closure sees the key that the database generated.
    let order = order::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(2),
        ..Default::default()
    }
    .insert_with_events(&db, |order| {
        [OrderPlaced {
            order_id: order.id,
            product: order.product.clone(),
            units: order.units,
        }]
    })
    .await?;
    println!("saved order {}", order.id);

    // The relay, on a pool of its own: a busy service must not keep it waiting.
    let config = PublisherConfig::default().stream(stream).prefix(prefix.clone());
    let publisher = JetStreamPublisher::new(client.clone(), config);
    let relay = Relay::new(SqlStore::new(pool(3).await?), publisher);

    // The consumer. The hook is called after the commit; a service runs until `outbox_core::shutdown::on_signals()` instead.
    let subscriber =
        JetStreamSubscriber::new(client, SubscriberConfig::default().stream(stream).prefix(prefix));
    let shutdown = CancellationToken::new();
    let done = shutdown.clone();
    let inbox = Inbox::new(db.clone(), subscriber).on_handled(move |_| done.cancel());

    // What cannot start ends the other too. Nothing is lost by that, as in a crash.
    type Failure = Box<dyn std::error::Error>;
    let (relay, inbox) = tokio::try_join!(
        async { Ok::<_, Failure>(relay.run(shutdown.clone()).await?) },
        async { Ok::<_, Failure>(inbox.run(shutdown.clone()).await?) },
    )?;
    println!(
        "relay published {}, inbox handled {}",
        relay.published, inbox.handled
    );
    let left = stock::Entity::find_by_id("chai").one(&db).await?;
    println!("chai in stock: {}", left.map_or(0, |chai| chai.units));
    Ok(())
}

//! `DATABASE_URL=postgres://… NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 16_postgres_jetstream`
//!
//! Service, relay and consumer on PostgreSQL and a real JetStream, in one process: an order is saved together with its event, the relay publishes the
//! event, and a handler takes the units from the stock. The program is a service: it ends with Ctrl-C or SIGTERM.

use outbox::prelude::*;
use sea_orm::entity::prelude::*;
use sea_orm::{QuerySelect, Set};
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
    let left = stock::ActiveModel {
        units: Set(product.units - event.units),
        ..product.into()
    };
    left.update(&tx).await?;
    println!(
        "reserved {} {} for order {}",
        event.units, event.product, event.order_id
    );
    Ok(())
}

/// A pool. It waits for its database. Its tables are in a schema of their own, so that the example disturbs nothing.
async fn pool(connections: u32) -> Result<DatabaseConnection, outbox::Failure> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, for example to postgres://127.0.0.1/shop")?;
    let mut options = sea_orm::ConnectOptions::new(url);
    options
        .max_connections(connections)
        .set_schema_search_path("example_16");
    Ok(outbox::connect(options).await?)
}

/// A service makes its tables in migrations. Here the schema is made anew, so that each run prints the same lines.
async fn create_tables(db: &DatabaseConnection) -> Result<(), DbErr> {
    db.execute_unprepared("DROP SCHEMA IF EXISTS example_16 CASCADE")
        .await?;
    db.execute_unprepared("CREATE SCHEMA example_16").await?;
    let tables = db.get_schema_builder();
    let tables = tables.register(order::Entity).register(stock::Entity);
    tables.apply(db).await?;
    let chai = stock::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(39),
    };
    chai.insert(db).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    // What relay and inbox have to say goes to `tracing`; without a subscriber it is lost. The filter leaves out every statement and every notice.
    tracing_subscriber::fmt()
        .with_env_filter("info,sqlx=warn,async_nats=warn")
        .with_writer(std::io::stderr)
        .init();

    // Tables and stream. A service keeps the defaults, `EventStream::default()`: the stream `EVENTS` with the prefix `events`.
    let db = pool(10).await?;
    create_tables(&db).await?;
    outbox::migrate(&db).await?;
    let stream = EventStream::new("EXAMPLE_16").with_prefix("example16")?;
    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let client = stream.connect(url).await?;
    stream.provision(&client).await?;

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

    // The relay publishes what was committed, and the inbox runs the handlers, until Ctrl-C or SIGTERM. The relay has a pool of its own, so that a busy
    // service does not keep it waiting.
    let report = Runner::new()
        .with_relay(stream.relay(pool(3).await?, client.clone()))
        .with_inbox(stream.inbox(db.clone(), client))
        .run()
        .await?;
    println!(
        "relay published {}, inbox handled {}",
        report.relays[0].published, report.inboxes[0].handled
    );
    let left = stock::Entity::find_by_id("chai").one(&db).await?;
    println!("chai in stock: {}", left.map_or(0, |chai| chai.units));
    Ok(())
}

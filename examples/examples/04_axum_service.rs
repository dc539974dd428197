//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 04_axum_service`
//!
//! An HTTP service that saves with events, and runs relay and consumer in the same process. Try it with
//! `curl -X POST http://127.0.0.1:PORT/orders/chai/2` and `curl http://127.0.0.1:PORT/stock`; end it with ctrl-c. Then the
//! server stops accepting, and relay and consumer finish what they have begun.

use std::sync::Arc;

use axum::extract::{Path, State as AppState};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use outbox::Runner;
use outbox_core::{DomainEvent, MessageContext, Relay, shutdown};
use outbox_inbox::{Event, HandlerError, Inbox, Metadata, Tx, idempotent_handler};
use outbox_nats::async_nats::jetstream;
use outbox_nats::{EventStream, PublisherConfig, connect, connect_options};
use outbox_sea_orm::{SaveWithEvents, SqlStore};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, Set, Statement};
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

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
    units: i32,
}

async fn place_order(
    AppState(db): AppState<Arc<DatabaseConnection>>,
    Path((product, units)): Path<(String, i32)>,
    headers: HeaderMap,
) -> Result<String, (StatusCode, String)> {
    // What the event was caused by travels with it: the request's id and trace.
    let header = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let context = MessageContext {
        correlation_id: header("x-request-id"),
        traceparent: header("traceparent"),
        ..MessageContext::default()
    };
    let order = order::ActiveModel {
        product: Set(product),
        units: Set(units),
        ..Default::default()
    };
    // A client that hangs up does not stop the save: it runs in a task of its own.
    let save = context.scope(order.insert_with_events(&*db, |order| {
        [OrderPlaced {
            order_id: order.id,
            product: order.product.clone(),
            units: order.units,
        }]
    }));
    match save.await {
        Ok(order) => Ok(format!("order {}\n", order.id)),
        Err(error) => Err(internal(&error)),
    }
}

/// The cause is for the log, not for the client.
fn internal(error: &(dyn std::error::Error + 'static)) -> (StatusCode, String) {
    tracing::error!(error, "request failed");
    (StatusCode::INTERNAL_SERVER_ERROR, "try again\n".to_owned())
}

async fn stock(AppState(db): AppState<Arc<DatabaseConnection>>) -> Result<String, (StatusCode, String)> {
    let failed = |error: sea_orm::DbErr| internal(&error);
    let sql = Statement::from_string(
        db.get_database_backend(),
        "SELECT units FROM stock WHERE product = 'chai'",
    );
    let row = db.query_one_raw(sql).await.map_err(failed)?;
    let units = row
        .map_or(Ok(0), |row| row.try_get::<i32>("", "units"))
        .map_err(failed)?;
    Ok(format!("chai: {units}\n"))
}

#[idempotent_handler(consumer = "example04-inventory")]
async fn reserve_stock(
    event: Event<OrderPlaced>,
    metadata: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    let sql = "UPDATE stock SET units = units - $1 WHERE product = $2";
    let values = [event.units.into(), event.product.clone().into()];
    tx.execute_raw(Statement::from_sql_and_values(
        tx.get_database_backend(),
        sql,
        values,
    ))
    .await?;
    let request = metadata.context().correlation_id.unwrap_or_default();
    println!(
        "reserved {} {} for order {} (request {request})",
        event.units, event.product, event.order_id
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, product TEXT NOT NULL, units INTEGER NOT NULL);
         CREATE TABLE stock (product TEXT PRIMARY KEY, units INTEGER NOT NULL);
         INSERT INTO stock VALUES ('chai', 39)",
    )
    .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;

    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let client = connect(url, connect_options()).await?;
    // A stream and a prefix of its own, so that the example disturbs nothing; a service keeps the defaults `EVENTS` and `events`.
    let stream = EventStream::new("EXAMPLE_04").with_prefix("example04")?;
    let _ = jetstream::new(client.clone()).delete_stream(stream.name()).await;
    stream.provision(&client).await?;

    // One token ends everything: ctrl-c or SIGTERM.
    let shutdown = shutdown::on_signals();
    let config = PublisherConfig::default().source("order-service");
    let publisher = stream.publisher(client.clone()).with_config(config);
    let relay = Relay::new(SqlStore::new(db.clone()), publisher);
    let inbox = Inbox::new(db.clone(), stream.subscriber(client));

    let app = axum::Router::new()
        .route("/orders/{product}/{units}", post(place_order))
        .route("/stock", get(stock))
        .with_state(Arc::new(db));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = axum::serve(listener, app).with_graceful_shutdown(shutdown.clone().cancelled_owned());

    // What cannot start ends the others too, with its error.
    let runner = Runner::new().with_relay(relay).with_inbox(inbox);
    let (served, report) = tokio::join!(async { server.await }, runner.run_until(shutdown));
    served?;
    let report = report?;
    println!(
        "relay published {}, inbox handled {}",
        report.relays[0].published, report.inboxes[0].handled
    );
    Ok(())
}

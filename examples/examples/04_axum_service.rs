//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 04_axum_service`
//!
//! An HTTP service that saves with events, and runs relay and consumer in the same process. Try it
//! with `curl -X POST http://127.0.0.1:PORT/orders/chai/2` and `curl http://127.0.0.1:PORT/stock`.

use std::sync::Arc;

use axum::extract::{Path, State as AppState};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use outbox::core::shutdown;
use outbox::nats;
use outbox::prelude::*;
use outbox::testing::TestDatabase;
use sea_orm::entity::prelude::*;
use sea_orm::{ExprTrait as _, Set};
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
    // The event carries the id and the trace of the request.
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
    // The save runs in a separate task, so it continues if the client disconnects.
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

/// Logs the cause of an error and hides it from the client.
fn internal(error: &(dyn std::error::Error + 'static)) -> (StatusCode, String) {
    tracing::error!(error, "request failed");
    (StatusCode::INTERNAL_SERVER_ERROR, "try again\n".to_owned())
}

async fn show_stock(AppState(db): AppState<Arc<DatabaseConnection>>) -> Result<String, (StatusCode, String)> {
    let chai = stock::Entity::find_by_id("chai").one(&*db).await;
    let chai = chai.map_err(|error| internal(&error))?;
    Ok(format!("chai: {}\n", chai.map_or(0, |chai| chai.units)))
}

/// An orchestrator restarts the process if `/live` fails, and sends it no requests while `/ready`
/// fails.
fn probe(passes: bool) -> StatusCode {
    match passes {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[idempotent_handler(consumer = "example04-inventory")]
async fn reserve_stock(
    event: Event<OrderPlaced>,
    metadata: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    stock::Entity::update_many()
        .col_expr(
            stock::Column::Units,
            Expr::col(stock::Column::Units).sub(event.units),
        )
        .filter(stock::Column::Product.eq(&event.product))
        .exec(&tx)
        .await?;
    let request = metadata.context().correlation_id.unwrap_or_default();
    println!(
        "reserved {} {} for order {} (request {request})",
        event.units, event.product, event.order_id
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("info,sqlx=warn,async_nats=warn")
        .with_writer(std::io::stderr)
        .init();
    // A service connects to its own database, and calls `outbox::migrate` at each start.
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    create_tables(&db).await?;

    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    // A separate stream and prefix, so that the example does not affect other streams. A service
    // keeps the defaults `EVENTS` and `events`.
    let stream = EventStream::new("EXAMPLE_04").with_prefix("example04")?;
    let client = stream.connect(url).await?;
    let _ = nats::async_nats::jetstream::new(client.clone())
        .delete_stream(stream.name())
        .await;
    stream.provision(&client).await?;

    // One token, cancelled by Ctrl-C or SIGTERM, ends server, relay and inbox.
    let shutdown = shutdown::on_signals();
    let config = PublisherConfig::default().source("order-service");
    let publisher = stream.publisher(client.clone()).with_config(config);
    let relay = Relay::new(SqlStore::new(relay_db), publisher);
    let inbox = stream.inbox(db.clone(), client);

    let runner = Runner::new().with_relay(relay).with_inbox(inbox);
    let (live, ready) = (runner.health(), runner.health());
    let app = axum::Router::new()
        .route("/live", get(async move || probe(live.now().is_alive())))
        .route("/ready", get(async move || probe(ready.now().is_ready())))
        .route("/orders/{product}/{units}", post(place_order))
        .route("/stock", get(show_stock))
        .with_state(Arc::new(db));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = axum::serve(listener, app).with_graceful_shutdown(shutdown.clone().cancelled_owned());

    // At shutdown, the server waits for running requests. A second signal ends this wait, and the
    // wait of relay and inbox.
    let serve = async {
        tokio::select! {
            served = async { server.await } => served,
            () = shutdown::hurry().cancelled_owned() => Ok(()),
        }
    };
    // If relay or inbox cannot start, the server ends too, and `report?` returns the error.
    let (served, report) = tokio::join!(serve, runner.run_until(shutdown));
    served?;
    let report = report?;
    println!(
        "relay published {}, inbox handled {}",
        report.relays[0].published, report.inboxes[0].handled
    );
    Ok(())
}

async fn create_tables(db: &DatabaseConnection) -> Result<(), DbErr> {
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

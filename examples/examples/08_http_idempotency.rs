//! `cargo run -p examples --example 08_http_idempotency`
//!
//! A client retries a request after a timeout. With an `Idempotency-Key` the order is placed once:
//! key, order, event and response commit together, and the retry gets the stored response. No
//! server is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use axum::extract::{Request, State as AppState};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use outbox::inbox::http::{IdempotencyLayer, RequestTx, Scope};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::Set;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub product: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
}

/// Whether the credit check is available. The first check fails.
type CreditCheck = Arc<AtomicBool>;

/// Order and event are saved through `tx`. A success or a redirect commits; any other response
/// rolls back.
async fn place_order(
    AppState(credit_check): AppState<CreditCheck>,
    tx: RequestTx,
    product: String,
) -> Result<(StatusCode, String), StatusCode> {
    let order = order::ActiveModel {
        product: Set(product),
        ..Default::default()
    };
    let order = order
        .insert_with_events(&tx, |order| {
            [OrderPlaced {
                order_id: order.id,
                product: order.product.clone(),
            }]
        })
        .await
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    if order.product == "caviar" && !credit_check.swap(true, Ordering::SeqCst) {
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok((
        StatusCode::CREATED,
        format!("order {}: {}", order.id, order.product),
    ))
}

/// The caller, set by the authentication only.
#[derive(Clone)]
struct User(&'static str);

/// Simulates the authentication of a real service.
async fn authenticate(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(User("ann"));
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder().register(order::Entity).apply(&db).await?;

    // A key belongs to a tenant and a principal: another user's `k-1` is another key.
    let idempotency = IdempotencyLayer::new(db.clone(), |request| {
        let User(id) = request.extensions.get()?;
        Some(Scope::new("northwind", *id))
    });
    idempotency.check().await?;
    let app = axum::Router::new()
        .route("/orders", post(place_order))
        .route_layer(idempotency)
        .layer(from_fn(authenticate))
        .with_state(CreditCheck::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    for (key, product, remark) in [
        ("k-1", "chai", "the first time"),
        ("k-1", "chai", "again"),
        ("k-1", "coffee", "another request under the same key"),
        ("", "chai", "no key"),
        ("k-2", "caviar", "a failure, rolled back"),
        ("k-2", "caviar", "again: the request runs"),
        ("k-2", "caviar", "and again"),
    ] {
        println!(
            "{product:<6} {key:<3} {remark}: {}",
            send(&address, key, product).await?
        );
    }
    server.abort();

    // Committed events are published: one per order.
    let relay = Relay::new(SqlStore::new(relay_db), MemoryBroker::new().publisher());
    println!("published {} events", relay.drain().await?.published);
    Ok(())
}

async fn send(address: &str, key: &str, product: &str) -> anyhow::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let mut head = format!("POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    if !key.is_empty() {
        head.push_str(&format!("idempotency-key: \"{key}\"\r\n"));
    }
    let length = product.len();
    let request = format!("{head}content-type: text/plain\r\ncontent-length: {length}\r\n\r\n{product}");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    let replayed = if head.contains("idempotency-replayed: true") {
        ", replayed"
    } else {
        ""
    };
    Ok(format!("{status}{replayed} {body}").trim_end().to_owned())
}

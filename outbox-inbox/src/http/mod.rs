//! Idempotent HTTP requests: a layer for axum that applies a request with an `Idempotency-Key`
//! once.
//!
//! Key, response, effect and events commit in one transaction, which the handler takes as an
//! argument, [`RequestTx`]. A retried request gets the response stored in the table.
//!
//! ```standalone_crate
//! use axum::Router;
//! use axum::extract::Path;
//! use axum::http::{Request, StatusCode};
//! use axum::routing::post;
//! use outbox_core::DomainEvent;
//! use outbox_inbox::http::{IdempotencyLayer, RequestTx, Scope};
//! use sea_orm::{ConnectionTrait, Database};
//! use serde::{Deserialize, Serialize};
//! use tower::ServiceExt;
//!
//! #[derive(DomainEvent, Serialize, Deserialize)]
//! #[domain_event(aggregate = "order", name = "placed")]
//! struct OrderPlaced {
//!     #[domain_event(aggregate_id)]
//!     order_id: i64,
//! }
//!
//! /// Effects and events through `tx` commit with a success or a redirection.
//! async fn place(Path(order_id): Path<i64>, tx: RequestTx) -> Result<StatusCode, StatusCode> {
//!     let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
//!     let insert = format!("INSERT INTO orders VALUES ({order_id})");
//!     tx.execute_unprepared(&insert).await.map_err(failed)?;
//!     let recorded = outbox_sea_orm::record(&tx, [OrderPlaced { order_id }]).await;
//!     recorded.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     Ok(StatusCode::CREATED)
//! }
//!
//! /// The user, as an authenticating layer has put it into the request's extensions.
//! #[derive(Clone)]
//! struct User {
//!     company: String,
//!     id: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = sea_orm::ConnectOptions::new("sqlite::memory:");
//! options.max_connections(1); // A database in memory lasts as long as its single connection.
//! let db = Database::connect(options).await?;
//! outbox_sea_orm::migrate(&db).await?;
//! outbox_inbox::migrate(&db).await?;
//! db.execute_unprepared("CREATE TABLE orders (id INTEGER PRIMARY KEY)").await?;
//!
//! let idempotency = IdempotencyLayer::new(db, |request| {
//!     let user = request.extensions.get::<User>()?;
//!     Some(Scope::new(&user.company, &user.id))
//! });
//! idempotency.check().await?;
//! let app = Router::new().route("/orders/{id}", post(place)).route_layer(idempotency);
//!
//! let request = || {
//!     let request = Request::post("/orders/7").header("idempotency-key", "\"k-1\"");
//!     let user = User { company: "acme".into(), id: "ann".into() };
//!     request.extension(user).body(axum::body::Body::empty())
//! };
//! let first = app.clone().oneshot(request()?).await?;
//! assert_eq!(first.status(), StatusCode::CREATED);
//! let again = app.oneshot(request()?).await?;
//! assert_eq!(again.status(), StatusCode::CREATED);
//! assert_eq!(again.headers()["idempotency-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! Put authentication outside this layer. A replay bypasses all layers and handlers inside this
//! layer: a user who has lost a permission still gets the stored response.
//!
//! **A response is stored** if its transaction commits: a 2xx or 3xx response, or any response that
//! the handler wraps in [`Committed`]. All other responses are rolled back, and a retried request
//! runs the handler.
//!
//! Requests that do not reach the handler:
//!
//! - No key: 400. With [`MissingKey::PassThrough`] the handler runs instead.
//! - Two keys, or a key that is not 1 to 255 visible ASCII characters, bare or quoted: 400.
//! - No [`Scope`]: 401.
//! - A body larger than [`request_bytes_max`](IdempotencyLayer::with_request_bytes_max): 413.
//! - A key of a running request: 409 with `Retry-After`.
//! - A key used with another method, path, query, `Content-Type` or body: 422.
//! - A key with a stored response: that response, with `Idempotency-Replayed: true`.
//!
//! Requests with methods other than POST, PUT, PATCH and DELETE pass through without a key.
//! Responses to a request with a new key:
//!
//! - A 2xx response, a [`Committed`] response, or a 3xx response of a handler that has extracted
//!   [`RequestTx`]: stored and committed with the effect, and returned.
//! - Any other response of handler, extractor or inner layer: returned, and the effect is rolled
//!   back.
//! - The handler panics, ignores a rollback of its transaction, or responds with more than
//!   [`response_bytes_max`](IdempotencyLayer::with_response_bytes_max): 500, rolled back.
//! - The handler exceeds [`handler_timeout`](IdempotencyLayer::with_handler_timeout): 503 with
//!   `Retry-After`, rolled back.
//! - The database is unreachable, reports a deadlock or lock timeout, or does not confirm the
//!   commit: 503 with `Retry-After`.
//!
//! The layer's own answers are `application/problem+json` and are never stored.
//!
//! **Guaranteed**, for effects through the transaction: one effect per tenant, principal and key,
//! while the key is kept (24 hours by default). A replay has the first response's status, body, and
//! headers of a [closed list](IdempotencyLayer::with_stored_header). **Bodies are stored
//! unchanged**, including secrets.
//!
//! **A disconnected client** changes nothing: the handler runs to its end, and a retry gets the
//! stored response.
//!
//! **Concurrent requests with one key.** Within one process, the second request gets 409
//! immediately. Between processes:
//! - PostgreSQL: 409 immediately, by an advisory lock on 32 bits of the key's hash. Another key
//!   with the same bits, or a retry immediately after a rejected commit, also gets 409.
//! - MySQL and MariaDB: 409 immediately (`NOWAIT`). Of two simultaneous requests, the second waits
//!   at most `innodb_lock_wait_timeout` and gets the response of the first.
//! - SQLite: the second request waits at most `busy_timeout` and then gets 503.
//!
//! **Streams**: request and response bodies are held in memory, and trailers are lost. Serve
//! server-sent events and large downloads without this layer.
//!
//! **Expired rows** are deleted every ten minutes. Each key takes a row of up to
//! `response_bytes_max`, so limit the request rate.

mod key;
mod layer;
mod purge;
mod response;
mod running_keys;
mod service;
mod settings;
mod sql;
mod transaction;

pub use key::Scope;
pub use layer::IdempotencyLayer;
pub use purge::purge_requests;
pub use response::Committed;
pub use service::Idempotency;
pub use settings::MissingKey;
pub use transaction::RequestTx;

#[cfg(test)]
pub(crate) fn expired_ids(
    backend: sea_orm::DbBackend,
    names: &outbox_sea_orm::TableNames,
) -> sea_orm::Statement {
    sql::RequestSql::new(backend, names, std::time::Duration::ZERO).expired_ids(1_000)
}

//! Idempotent HTTP requests: a layer for axum that makes a request with an `Idempotency-Key` take effect once.
//!
//! A client that gets no response sends its request again and would order twice. The layer inserts the key into a table in the transaction of the
//! effect and stores the response with it. So response, effect and events commit together or not at all, and a retry is answered from the table. The
//! handler takes the transaction as an argument, [`RequestTx`].
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
//! /// Writes effects and events through `tx`. A success or a redirection commits them with the response; any other status rolls them back.
//! async fn place(Path(order_id): Path<i64>, tx: RequestTx) -> Result<StatusCode, StatusCode> {
//!     let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
//!     tx.execute_unprepared(&format!("INSERT INTO orders VALUES ({order_id})")).await.map_err(failed)?;
//!     outbox_sea_orm::record(&tx, [OrderPlaced { order_id }]).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
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
//!     request.extension(User { company: "acme".into(), id: "ann".into() }).body(axum::body::Body::empty())
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
//! Put authentication outside this layer: its scope needs to know the user. Everything inside this layer takes effect once per key, and a replay passes nothing
//! of it: whoever has lost a right since then still gets the stored response.
//!
//! **A response is stored for retries** if its transaction commits. That is a response 2xx or 3xx, and any other that the handler wraps in [`Committed`]. All
//! others are rolled back and not stored, so a retry with the same key runs the handler. So no refusal outlasts its cause: not that of an extractor or a layer inside (401, 403, 413,
//! 415, 422), not that of a conflict (409).
//!
//! | request | answer |
//! |---|---|
//! | GET and other methods than POST, PUT, PATCH and DELETE | passed through |
//! | no key | 400, or handled without ([`MissingKey`]) |
//! | key not a string of 1 to 255 visible ASCII characters, bare or quoted; or two keys | 400 |
//! | no scope | 401 |
//! | body larger than [`request_bytes_max`](IdempotencyLayer::with_request_bytes_max) | 413 |
//! | key in use | 409 with `Retry-After` |
//! | key used with another method, path, query, `Content-Type` or body | 422 |
//! | key used with this one | the stored response, with `Idempotency-Replayed: true` |
//! | new key, handler answers 2xx, 3xx or [`Committed`]; a 3xx only if it has extracted [`RequestTx`] | its response, stored and committed with its effect |
//! | new key, handler, extractor or a layer inside answers anything else | its response; rolled back, and a retry runs |
//! | new key, handler panics, goes on after a lost transaction, or responds with more than [`response_bytes_max`](IdempotencyLayer::with_response_bytes_max) | 500; rolled back |
//! | new key, handler takes longer than [`handler_timeout`](IdempotencyLayer::with_handler_timeout) | 503 with `Retry-After`; rolled back |
//! | database unreachable or in conflict, or outcome of the commit unknown | 503 with `Retry-After`; a retry gives the result |
//!
//! The layer's own answers are `application/problem+json` and are never stored.
//!
//! **Promised**, for effects through the transaction: one effect per tenant, principal and key, while the key is kept (24 hours by default). A replay
//! has the status and body of the first response, and the headers of a [closed list](IdempotencyLayer::with_stored_header).
//! **Bodies are stored as they are**: a secret in a response's body is
//! a secret in the table.
//!
//! **A client that hangs up** changes nothing: the handler runs to its end, and a retry gets the stored response. If the process ends before the
//! commit, nothing is stored, and a retry runs the handler.
//!
//! **Two requests with one key at once.** Within one process, a list of running keys answers the second with 409 immediately. Between processes:
//!
//! - On PostgreSQL the second gets 409 immediately (an advisory lock per key, on 32 bits of its hash: of four billion pairs of other keys that run at the
//!   same time one gets it too, and takes effect at its retry).
//!   PostgreSQL also reports that it refuses a commit a moment before it frees the key: a retry at the same instant gets 409.
//! - On MySQL and MariaDB it does too (`NOWAIT`), unless both arrive at the very same moment. Then the second waits for the first, at most
//!   `innodb_lock_wait_timeout`, and gets its response.
//! - On SQLite one transaction writes at a time, so every second request waits, at most `busy_timeout`, and is then answered with 503.
//!
//! A transaction never takes effect beside another one with its key.
//!
//! **Streams**: request and response bodies are held in memory. Keep server-sent events and large downloads on routes without this layer. Trailers
//! are lost.
//!
//! **Expired rows** are deleted by the layer every ten minutes. Each key that a client uses adds a row
//! of up to `response_bytes_max` until then: limit how often a client may ask, and the size of responses.

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

/// The statement by which a purge finds expired requests.
#[cfg(test)]
pub(crate) fn expired_ids(
    backend: sea_orm::DbBackend,
    names: &outbox_sea_orm::TableNames,
) -> sea_orm::Statement {
    sql::RequestSql::new(backend, names, std::time::Duration::ZERO).expired_ids(1_000)
}

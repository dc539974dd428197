//! The request's transaction, as a handler sees it.
//!
//! Invariant: all writes through [`RequestTx`] commit together with the stored response, or not at
//! all. A handler can neither commit nor roll back.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use outbox_sea_orm::{Integrity, OutboxConfig, OutboxTransaction, Transactional, Watched};
use sea_orm::{DatabaseTransaction, DbErr};

use super::response::problem;

/// The transaction of a request behind an [`IdempotencyLayer`](super::IdempotencyLayer), as an
/// extractor. Write every effect through it: `.insert(&tx)`, `insert_with_events(&tx, …)`,
/// `record(&tx, …)`.
///
/// **Return database errors** as any status except 2xx and 3xx. PostgreSQL aborts a transaction at
/// the first error, and the layer answers 500 if a handler continues. Run a part that may fail in a
/// nested transaction ([`Self::begin`]).
///
/// Do not keep the transaction after the response: the layer would answer 500, and retries get 409
/// until the last clone is dropped.
#[derive(Clone)]
pub struct RequestTx(Arc<Open>);

struct Open {
    transaction: DatabaseTransaction,
    outbox: Arc<OutboxConfig>,
    recorded: AtomicBool,
    taken: AtomicBool,
    integrity: Integrity,
}

pub(crate) struct Closed {
    pub(crate) transaction: DatabaseTransaction,
    pub(crate) recorded: bool,
    pub(crate) taken: bool,
    pub(crate) integrity: Integrity,
}

impl fmt::Debug for RequestTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestTx")
    }
}

impl RequestTx {
    pub(crate) fn new(transaction: DatabaseTransaction, outbox: Arc<OutboxConfig>) -> Self {
        Self(Arc::new(Open {
            transaction,
            outbox,
            recorded: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            integrity: Integrity::default(),
        }))
    }

    /// Closes the transaction. Returns `None` if a clone still exists.
    pub(crate) fn close(self) -> Option<Closed> {
        let open = Arc::into_inner(self.0)?;
        Some(Closed {
            transaction: open.transaction,
            recorded: open.recorded.into_inner(),
            taken: open.taken.into_inner(),
            integrity: open.integrity,
        })
    }

    fn watched(&self) -> Watched<'_> {
        Watched::new(&self.0.transaction, &self.0.integrity)
    }

    /// Opens a nested transaction (a savepoint). Its rollback also undoes its events.
    ///
    /// # Errors
    ///
    /// The database's error; answer with a 5xx.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        OutboxTransaction::within(self).await
    }
}

impl Deref for RequestTx {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.0.integrity.expose();
        &self.0.transaction
    }
}

impl Transactional for RequestTx {
    fn transaction(&self) -> &DatabaseTransaction {
        &self.0.transaction
    }

    fn config(&self) -> &OutboxConfig {
        self.0.recorded.store(true, Ordering::Relaxed);
        &self.0.outbox
    }

    fn integrity(&self) -> Option<&Integrity> {
        Some(&self.0.integrity)
    }
}

outbox_sea_orm::__connection!(RequestTx, |this| this.watched());

outbox_sea_orm::__begins!(
    /// Nested transactions (savepoints). An isolation level or access mode is rejected.
    RequestTx,
    |tx, options| outbox_sea_orm::begin_nested(tx, options)
);

/// Answers 500 if the route is not behind the layer, or the layer passes the request's method
/// through.
impl<S: Sync> FromRequestParts<S> for RequestTx {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let tx: Option<Self> = parts.extensions.get().cloned();
        if let Some(tx) = &tx {
            tx.0.taken.store(true, Ordering::Relaxed);
        }
        tx.ok_or_else(|| {
            tracing::error!(
                method = %parts.method,
                path = parts.uri.path(),
                "handler takes `RequestTx` without an `IdempotencyLayer`: put the route behind the layer, \
                 and use POST, PUT, PATCH or DELETE"
            );
            problem(StatusCode::INTERNAL_SERVER_ERROR, "the server is misconfigured")
        })
    }
}

//! The layer, as the application builds it.
//!
//! Invariant: settings are complete when the layer is built around a service; nothing changes them afterwards. Not here: requests
//! ([`super::service`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderName, Method};
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::DatabaseConnection;
use tower::Layer;

use super::key::Scope;
use super::service::Idempotency;
use super::settings::{MissingKey, Settings};
use crate::runtime::InboxError;

/// Makes the requests behind it take effect once per key; see the [module](super).
///
/// Cheap to clone. Clones share what they know of running requests.
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("header_name", &self.settings.header_name)
            .field("methods", &self.settings.methods)
            .finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// A layer over the database that the handlers' effects go to.
    ///
    /// `scope` says whose a request is, from what an authenticating layer outside of this one has left in the request's extensions. `None` is
    /// answered with 401: a key without an owner would be everybody's. Each running request holds a connection of `db`.
    pub fn new(
        db: DatabaseConnection,
        scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        Self {
            settings: Arc::new(Settings::new(db, Arc::new(scope))),
        }
    }

    /// The header that carries the key. Default: `Idempotency-Key`.
    #[must_use]
    pub fn header_name(self, name: HeaderName) -> Self {
        self.set(|settings| settings.header_name = name)
    }

    /// The methods that need a key and get a transaction; others pass through untouched. Default: POST, PUT, PATCH, DELETE.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = methods.into_iter().collect())
    }

    /// What happens to a request without a key. Default: [`MissingKey::Refuse`].
    #[must_use]
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|settings| settings.missing_key = missing_key)
    }

    /// How long a key is remembered, from the start of its request; later it is a new one. One minute to ten years. Tell your clients.
    /// Default: 24 hours.
    #[must_use]
    pub fn keep(self, keep: Duration) -> Self {
        self.set(|settings| settings.keep = keep)
    }

    /// Longest run of a handler including its response's body; then it is cancelled, rolled back and answered with 503. More than zero.
    /// Default: 30 seconds.
    #[must_use]
    pub fn handler_timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.handler_timeout = timeout)
    }

    /// Largest request body, which is read into memory; a larger one is answered with 413. At least 1. Default: 1 MiB. Axum's extractors have
    /// a bound of their own, 2 MB.
    #[must_use]
    pub fn request_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.request_bytes_max = bytes)
    }

    /// Largest response body, which is stored; a larger one is rolled back and answered with 500. At least 1. Default: 1 MiB.
    #[must_use]
    pub fn response_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.response_bytes_max = bytes)
    }

    /// A response header that is not stored and not replayed, besides `Set-Cookie`, `Date`, those of the connection, and values that are marked
    /// as sensitive (`HeaderValue::set_sensitive`). May be called several times.
    #[must_use]
    pub fn omit_header(self, name: HeaderName) -> Self {
        self.set(|settings| settings.omitted.push(name))
    }

    /// The names of the inbox tables.
    #[must_use]
    pub fn names(self, names: TableNames) -> Self {
        self.set(|settings| settings.names = names)
    }

    /// Where and within which limits handlers record events.
    #[must_use]
    pub fn outbox(self, config: OutboxConfig) -> Self {
        self.set(|settings| settings.outbox = Arc::new(config))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Checks settings, database and table. Call it at the start: what it finds is otherwise logged at each request, which is answered with 500.
    ///
    /// # Errors
    ///
    /// [`InboxError::Start`] for settings, [`InboxError::Tables`] for what the database says, also if it is out of reach.
    pub async fn check(&self) -> Result<(), InboxError> {
        self.settings.checked().await.map(drop)
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, self.settings.clone())
    }
}

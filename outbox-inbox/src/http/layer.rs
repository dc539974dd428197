//! The [`IdempotencyLayer`] and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use axum::http::request::Parts;
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::DatabaseConnection;
use tokio::sync::OnceCell;
use tower::Layer;

use super::key::Scope;
use super::service::Idempotency;
use super::settings::{MissingKey, Settings};
use crate::runtime::InboxError;

/// Applies each request with a key once; see the [module](super). Clones share the list of running
/// requests.
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// Creates a layer over the database of the handlers. Each running request holds a connection.
    ///
    /// `scope` returns the owner of a request from its extensions, which an outer authentication
    /// layer has set. `None` is answered with 401.
    pub fn new(
        db: DatabaseConnection,
        scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        Self {
            settings: Arc::new(Settings::new(db, Arc::new(scope))),
        }
    }

    /// Sets the handling of requests without a key. Default: [`MissingKey::Refuse`].
    #[must_use]
    pub fn with_missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|settings| settings.missing_key = missing_key)
    }

    /// Sets the retention of a key, from the start of its request. One minute to ten years.
    /// Default: 24 hours.
    #[must_use]
    pub fn with_retention(self, retention: Duration) -> Self {
        self.set(|settings| settings.retention = retention)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_purge_every(self, every: Duration) -> Self {
        self.set(|settings| settings.purge_every = every)
    }

    /// Sets the maximum run time of a handler, including the response body. A request that runs
    /// longer is rolled back and answered with 503. Must be more than zero. Default: 30 seconds.
    #[must_use]
    pub fn with_handler_timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.handler_timeout = timeout)
    }

    /// Sets the largest request body in bytes; larger bodies are answered with 413. At least 1.
    /// Default: 1 MiB. Axum's extractors have their own limit of 2 MB.
    #[must_use]
    pub fn with_request_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.request_bytes_max = bytes)
    }

    /// Sets the largest response body in bytes; larger responses are rolled back and answered with
    /// 500. At least 1. Default: 1 MiB.
    #[must_use]
    pub fn with_response_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.response_bytes_max = bytes)
    }

    /// Adds a response header to store and replay. Always stored: `Cache-Control`,
    /// `Content-Disposition`, `Content-Encoding`, `Content-Language`, `Content-Location`,
    /// `Content-Type`, `ETag`, `Expires`, `Last-Modified`, `Link`, `Location` and `Vary`. A
    /// sensitive value (`HeaderValue::set_sensitive`) is never stored.
    #[must_use]
    pub fn with_stored_header(self, name: HeaderName) -> Self {
        self.set(|settings| settings.also_stored.push(name))
    }

    /// Sets the names of the inbox tables. Default: `TableNames::default()`.
    #[must_use]
    pub fn with_names(self, names: TableNames) -> Self {
        self.set(|settings| settings.names = names)
    }

    /// Sets the outbox tables and limits for events. Default: `OutboxConfig::default()`.
    #[must_use]
    pub fn with_outbox(self, config: OutboxConfig) -> Self {
        self.set(|settings| settings.outbox = Arc::new(config))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        change(settings);
        settings.checked = OnceCell::new();
        self
    }

    /// Checks the settings, the database and the request table, and starts the purge of expired
    /// requests. Call `check` at the start, in the runtime that serves the requests.
    ///
    /// # Errors
    ///
    /// [`InboxError::Start`] for wrong settings; [`InboxError::Tables`] for an error of the
    /// database.
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

#[cfg(test)]
mod tests {
    use sea_orm::{ConnectOptions, Database};

    use super::*;

    #[tokio::test]
    async fn a_purge_ends_with_the_last_clone_of_its_layer() {
        let mut options = ConnectOptions::new("sqlite::memory:");
        options.max_connections(1);
        let db = Database::connect(options).await.unwrap();
        crate::migrate(&db).await.unwrap();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let (mut before, mut unchanged) = (tasks(), 0);
        while unchanged < 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            unchanged = if tasks() == before { unchanged + 1 } else { 0 };
            before = tasks();
        }
        let layer = IdempotencyLayer::new(db, |_| None);
        layer.check().await.unwrap();
        let clone = layer.clone();
        drop(layer);
        let purges = async {
            while tasks() != before + 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), purges)
            .await
            .unwrap();
        drop(clone);
        let end = async {
            while tasks() > before {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), end).await.unwrap();
    }
}

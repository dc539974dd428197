//! The layer: its settings, and what is checked before the first request.
//!
//! Invariant: settings are complete when the layer is built around a service; nothing changes them afterwards. Absent here: requests.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderName, Method};
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use tokio::sync::OnceCell;
use tower::Layer;

use super::key::{Digest, Scope};
use super::service::Idempotency;
use super::sql::RequestSql;
use crate::config::RETENTION;
use crate::database::{Database, missing_feature};
use crate::runtime::InboxError;
use crate::start::{Problem, StartError};

/// What happens to a request without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is answered with 400.
    #[default]
    Refuse,
    /// It is handled, in a transaction as any other, so that handlers need not know; sent again it is handled again. No scope is asked for.
    PassThrough,
}

/// Makes the requests behind it take effect once per key; see the [module](super).
///
/// Cheap to clone. Clones share what they know of running requests.
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
}

pub(super) type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

#[derive(Clone)]
pub(super) struct Settings {
    db: DatabaseConnection,
    pub(super) scope: Arc<ScopeOf>,
    pub(super) header_name: HeaderName,
    pub(super) methods: Vec<Method>,
    pub(super) missing_key: MissingKey,
    retention: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) request_bytes_max: usize,
    pub(super) response_bytes_max: usize,
    pub(super) omitted: Vec<HeaderName>,
    names: TableNames,
    pub(super) outbox: Arc<OutboxConfig>,
    pub(super) running: Running,
    checked: OnceCell<Checked>,
}

/// What is known of the database once it was asked.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) database: Database,
    pub(super) sql: RequestSql,
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
            settings: Arc::new(Settings {
                db,
                scope: Arc::new(scope),
                header_name: HeaderName::from_static("idempotency-key"),
                methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
                missing_key: MissingKey::default(),
                retention: Duration::from_secs(24 * 3600),
                handler_timeout: Duration::from_secs(30),
                request_bytes_max: 1024 * 1024,
                response_bytes_max: 1024 * 1024,
                omitted: Vec::new(),
                names: TableNames::default(),
                outbox: Arc::default(),
                running: Running::default(),
                checked: OnceCell::new(),
            }),
        }
    }

    /// The header that carries the key. Default: `Idempotency-Key`.
    #[must_use]
    pub fn with_header_name(self, name: HeaderName) -> Self {
        self.set(|settings| settings.header_name = name)
    }

    /// The methods that need a key and get a transaction; others pass through untouched. Default: POST, PUT, PATCH, DELETE.
    #[must_use]
    pub fn with_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = methods.into_iter().collect())
    }

    /// What happens to a request without a key. Default: [`MissingKey::Refuse`].
    #[must_use]
    pub fn with_missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|settings| settings.missing_key = missing_key)
    }

    /// How long a key is remembered, from the start of its request; later it is a new one. One minute to ten years. Tell your clients.
    /// Default: 24 hours.
    #[must_use]
    pub fn with_retention(self, retention: Duration) -> Self {
        self.set(|settings| settings.retention = retention)
    }

    /// Longest run of a handler including its response's body; then it is cancelled, rolled back and answered with 503. More than zero.
    /// Default: 30 seconds.
    #[must_use]
    pub fn with_handler_timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.handler_timeout = timeout)
    }

    /// Largest request body, which is read into memory; a larger one is answered with 413. At least 1. Default: 1 MiB. Axum's extractors have
    /// a bound of their own, 2 MB.
    #[must_use]
    pub fn with_request_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.request_bytes_max = bytes)
    }

    /// Largest response body, which is stored; a larger one is rolled back and answered with 500. At least 1. Default: 1 MiB.
    #[must_use]
    pub fn with_response_bytes_max(self, bytes: usize) -> Self {
        self.set(|settings| settings.response_bytes_max = bytes)
    }

    /// A response header that is not stored and not replayed, besides `Set-Cookie`, `Date`, those of the connection, and values that are marked
    /// as sensitive (`HeaderValue::set_sensitive`). May be called several times.
    #[must_use]
    pub fn with_omitted_header(self, name: HeaderName) -> Self {
        self.set(|settings| settings.omitted.push(name))
    }

    /// The names of the inbox tables.
    #[must_use]
    pub fn with_names(self, names: TableNames) -> Self {
        self.set(|settings| settings.names = names)
    }

    /// Where and within which limits handlers record events.
    #[must_use]
    pub fn with_outbox(self, config: OutboxConfig) -> Self {
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

impl Settings {
    pub(super) async fn checked(&self) -> Result<&Checked, InboxError> {
        self.checked
            .get_or_try_init(|| async {
                StartError::unless_empty(self.problems())?;
                self.inspect().await.map_err(InboxError::Tables)
            })
            .await
    }

    async fn inspect(&self) -> Result<Checked, DbErr> {
        let sql = RequestSql::new(self.db.get_database_backend(), &self.names, self.retention);
        let database = Database::inspect(self.db.clone()).await?;
        database.pool().query_one_raw(sql.probe()).await?;
        Ok(Checked { database, sql })
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut fail = |text: String| problems.push(Problem::Config(text));
        if !RETENTION.contains(&self.retention) {
            fail(format!(
                "retention is {:?}; use {:?} to {:?}",
                self.retention,
                RETENTION.start(),
                RETENTION.end()
            ));
        }
        if self.handler_timeout.is_zero() {
            fail("handler_timeout is 0; use more".to_owned());
        }
        for (name, bytes) in [
            ("request_bytes_max", self.request_bytes_max),
            ("response_bytes_max", self.response_bytes_max),
        ] {
            if bytes == 0 {
                fail(format!("{name} is 0; use at least 1"));
            }
        }
        let backend = self.db.get_database_backend();
        if let Some(feature) = missing_feature(backend) {
            fail(format!(
                "feature `{feature}` of outbox-inbox is not enabled; enable it in Cargo.toml"
            ));
        }
        for names in [&self.names, &self.outbox.names] {
            problems.extend(names.check(backend).err().map(Problem::Names));
        }
        problems
    }
}

/// The keys that run in this process. It spares the database most of the requests that would find their key in use, and on SQLite, where
/// one transaction writes at a time, all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<Digest>>>);

impl Running {
    /// Enters a key; `None` if it is there.
    pub(super) fn enter(&self, id: Digest) -> Option<Entry> {
        self.keys(|keys| keys.insert(id)).then(|| Entry {
            running: self.clone(),
            id,
        })
    }

    fn keys<R>(&self, change: impl FnOnce(&mut HashSet<Digest>) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A key that runs. Dropped, it has ended.
#[derive(Debug)]
pub(super) struct Entry {
    running: Running,
    id: Digest,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.keys(|keys| keys.remove(&self.id));
    }
}

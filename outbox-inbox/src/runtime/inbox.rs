//! An inbox: configuration and entry points.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use outbox_core::{CatalogueError, DedupStore, DedupStoreError, StartAt, Subscriber, SubscriberError};
use outbox_sea_orm::{ConnectError, OutboxConfig, TableNames};
use sea_orm::{DatabaseConnection, DbErr};
use tokio_util::sync::CancellationToken;

use crate::config::InboxConfig;
use crate::hook::{DeadDelivery, Handled};
use crate::layer::Middleware;
use crate::router::Router;
use crate::runtime::consumer::HandlerServices;
use crate::runtime::health::InboxHealthCheck;
use crate::runtime::report::InboxReport;
use crate::start_error::StartError;
use crate::upcast::Upcasters;

/// Runs the handlers of this program on the messages of a subscriber.
///
/// ```
/// # use outbox_testing::MemoryBroker;
/// # use outbox_inbox::{Inbox, InboxError};
/// # type Db = sea_orm::DatabaseConnection;
/// # async fn demo(db: Db, broker: MemoryBroker) -> Result<(), InboxError> {
/// # struct Mailer;
/// let shutdown = outbox_core::shutdown::on_signals();
/// let report = Inbox::new(db, broker.subscriber()).with_state(Mailer).run(shutdown).await?;
/// println!("handled {} messages", report.handled);
/// # Ok(())
/// # }
/// ```
pub struct Inbox<S> {
    pub(crate) db: DatabaseConnection,
    pub(crate) subscriber: Arc<S>,
    pub(crate) services: HandlerServices,
    pub(crate) router: Option<Router>,
    pub(crate) consumers: Option<Vec<String>>,
    pub(crate) expected: Vec<String>,
    pub(crate) starts: HashMap<String, StartAt>,
    pub(crate) config: InboxConfig,
    pub(crate) names: TableNames,
    pub(crate) health: InboxHealthCheck,
}

impl<S> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("state", &self.services.state)
            .field("consumers", &self.consumers)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Why an inbox cannot start. A running inbox ends only with [`Self::Panicked`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The event types linked into this program contradict each other.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Handlers, state or configuration are inconsistent.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The database rejects the login or the database name, or its certificate is not trusted.
    #[error(transparent)]
    Connect(ConnectError),
    /// The inbox tables cannot be read.
    #[error(
        "inbox tables are missing or cannot be read; run the migration (`outbox::migrate(&db)`, `outbox_inbox::migrate(&db)`, or the SQL in docs/sql), and check \
         table names and rights"
    )]
    Tables(#[source] DbErr),
    /// The deduplication store is misconfigured.
    #[error("deduplication store cannot be used")]
    DedupStore(#[source] DedupStoreError),
    /// The broker rejects a consumer's configuration.
    #[error("consumer `{consumer}` cannot be set up")]
    Subscriber {
        /// Name of the consumer.
        consumer: &'static str,
        /// The broker's error.
        source: SubscriberError,
    },
    /// A consumer panicked outside a handler, and the inbox stopped. Start it again.
    #[error("consumer `{consumer}` stopped: {reason}; start the inbox again")]
    Panicked {
        /// Name of the consumer.
        consumer: &'static str,
        /// The panic message.
        reason: String,
    },
}

impl<S: Subscriber> Inbox<S> {
    /// Creates an inbox with all linked handlers ([`Router::registered`]) and default settings.
    ///
    /// The pool of `db`, the database of the handlers' effects, should have at least
    /// [`InboxConfig::concurrency`] connections per consumer.
    pub fn new(db: DatabaseConnection, subscriber: S) -> Self {
        let config = InboxConfig::default();
        Self {
            db,
            subscriber: Arc::new(subscriber),
            services: HandlerServices::default(),
            router: None,
            consumers: None,
            expected: Vec::new(),
            starts: HashMap::new(),
            health: InboxHealthCheck::new(config.stuck_after),
            config,
            names: TableNames::default(),
        }
    }

    /// Provides a value for [`HandlerState<T>`](crate::HandlerState) arguments. Replaces a value of
    /// the same type.
    #[must_use]
    pub fn with_state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.services.state.insert(value);
        self
    }

    /// Sets the handlers. Default: [`Router::registered`].
    #[must_use]
    pub fn with_router(mut self, router: Router) -> Self {
        self.router = Some(router);
        self
    }

    /// Sets the consumers of this process. A second call replaces the names. Default: all
    /// consumers.
    #[must_use]
    pub fn with_consumers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.consumers = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Requires that handlers are linked, by crate (`my_handlers`), module, function
    /// (`my_handlers::mail::send_receipt`) or consumer. A missing handler is an error at the start.
    /// A second call adds names.
    ///
    /// The linker drops unreferenced crates: link them with
    /// [`link_handlers!`](crate::link_handlers).
    #[must_use]
    pub fn expect_handlers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.expected.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets where a new consumer starts in the stream. Default: [`StartAt::Beginning`]. A second
    /// call for the same consumer replaces the first. An unknown consumer is an error at the start
    /// of the inbox. An existing consumer keeps its position. Strategy `sequence` does not wait for
    /// messages before the start position.
    #[must_use]
    pub fn with_start(mut self, consumer: impl Into<String>, start_at: StartAt) -> Self {
        self.starts.insert(consumer.into(), start_at);
        self
    }

    /// Sets the configuration. Default: [`InboxConfig::default`].
    #[must_use]
    pub fn with_config(mut self, config: InboxConfig) -> Self {
        self.health = InboxHealthCheck::new(config.stuck_after);
        self.config = config;
        self
    }

    outbox_core::__setters! {
        /// Sets the table and limits for follow-up events. Default: [`OutboxConfig::default`].
        fn with_outbox(outbox: OutboxConfig, in services);
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
        /// Sets the conversions of older event versions. Default: none.
        fn with_upcasters(upcasters: Upcasters, in services);
    }

    /// Adds middleware around every handler run. The first middleware is the outermost.
    #[must_use]
    pub fn with_middleware(mut self, middleware: impl Middleware) -> Self {
        self.services.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets the deduplication store for the strategy [`external`](crate::Strategy::External).
    #[must_use]
    pub fn with_dedup_store(mut self, store: impl DedupStore) -> Self {
        self.services.store = Some(Arc::new(store));
        self
    }

    /// Calls `hook` after the commit of each handled message, at most once: a crash can lose the
    /// call. The hook must not block. A panic is logged. A second call replaces the hook.
    #[must_use]
    pub fn on_handled(mut self, hook: impl Fn(Handled<'_>) + Send + Sync + 'static) -> Self {
        self.services.hooks.on_handled = Some(Arc::new(hook));
        self
    }

    /// As [`Self::on_handled`], but calls `hook` after each dead-lettered message and each failed
    /// retry of a dead letter.
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(DeadDelivery<'_>) + Send + Sync + 'static) -> Self {
        self.services.hooks.on_dead_letter = Some(Arc::new(hook));
        self
    }

    /// Returns the health of the latest run. Call it after [`Self::with_config`] and before
    /// [`Self::run`].
    ///
    /// Liveness and readiness with axum:
    ///
    /// ```
    /// use axum::Router;
    /// use axum::extract::State;
    /// use axum::http::StatusCode;
    /// use axum::routing::get;
    /// use outbox_inbox::InboxHealthCheck;
    ///
    /// /// Fails if the process should be restarted, or broker and database be checked.
    /// async fn live(State(inbox): State<InboxHealthCheck>) -> (StatusCode, String) {
    ///     let health = inbox.now();
    ///     (status(health.is_alive()), health.to_string())
    /// }
    ///
    /// /// Fails while a consumer does not receive.
    /// async fn ready(State(inbox): State<InboxHealthCheck>) -> (StatusCode, String) {
    ///     let health = inbox.now();
    ///     (status(health.is_ready()), health.to_string())
    /// }
    ///
    /// fn status(passes: bool) -> StatusCode {
    ///     if passes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    /// }
    ///
    /// # fn demo(inbox: outbox_inbox::Inbox<outbox_testing::MemorySubscriber>) {
    /// let probes: Router = Router::new()
    ///     .route("/live", get(live))
    ///     .route("/ready", get(ready))
    ///     .with_state(inbox.health());
    /// # }
    /// ```
    #[must_use]
    pub fn health(&self) -> InboxHealthCheck {
        self.health.clone()
    }

    /// Runs the inbox until `shutdown` is cancelled, also through outages of database or broker.
    /// Then the inbox waits up to [`InboxConfig::shutdown_timeout`] for running handlers, cancels
    /// the remaining handlers, and ends at most two seconds later. Unhandled messages return to the
    /// broker.
    ///
    /// # Errors
    ///
    /// [`InboxError`] at the start; later only [`InboxError::Panicked`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future rolls back the running handlers in the background. The broker redelivers
    /// their messages.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<InboxReport, InboxError> {
        self.run_observed(shutdown.child_token(), false).await
    }

    /// Runs the inbox until no consumer has work left, including delayed retries and at most 100
    /// marked dead letters per consumer.
    ///
    /// Follow-up events are recorded but not published: drain a relay, then the inbox again.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::run`].
    ///
    /// # Cancellation
    ///
    /// The rules of [`Self::run`] apply.
    pub async fn drain(&self) -> Result<InboxReport, InboxError> {
        self.run_observed(CancellationToken::new(), true).await
    }
}

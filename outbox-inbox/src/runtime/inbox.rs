//! What an inbox is given, and how a program starts and watches it.
//!
//! Not here: the way from its start to its end, see [`crate::runtime::lifecycle`].

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
/// # async fn demo(db: sea_orm::DatabaseConnection, broker: MemoryBroker) -> Result<(), InboxError> {
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
    /// Handlers and consumers without which it does not start.
    pub(crate) expected: Vec<String>,
    /// By consumer.
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

/// Why an inbox cannot start. Once it runs, only [`Self::Panicked`] ends it: it backs off from
/// trouble and goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The event types linked into this program contradict each other.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Handlers, state or configuration do not fit together.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The database refuses user, password or database name, or its certificate is not trusted. It
    /// will do so until somebody acts.
    #[error(transparent)]
    Connect(ConnectError),
    /// The tables cannot be read.
    #[error(
        "inbox tables are missing or cannot be read; run the migration (`outbox::migrate(&db)`, `outbox_inbox::migrate(&db)`, or the SQL in docs/sql), and check \
         table names and rights"
    )]
    Tables(#[source] DbErr),
    /// The deduplication store cannot work as it is set up.
    #[error("deduplication store cannot be used")]
    DedupStore(#[source] DedupStoreError),
    /// The broker cannot serve a consumer as it is set up.
    #[error("consumer `{consumer}` cannot be set up")]
    Subscriber {
        /// The consumer.
        consumer: &'static str,
        /// The broker's reason.
        source: SubscriberError,
    },
    /// A consumer panicked outside of its messages. The inbox stopped the other consumers as in a
    /// shutdown; start it again.
    #[error("consumer `{consumer}` cannot go on: {reason}")]
    Panicked {
        /// The consumer.
        consumer: &'static str,
        /// What panicked, and what it said.
        reason: String,
    },
}

impl<S: Subscriber> Inbox<S> {
    /// An inbox with all linked handlers ([`Router::registered`]) and the default configuration.
    ///
    /// `db` is the database that the handlers' effects go to. Its pool should have at least
    /// [`InboxConfig::concurrency`] connections per consumer, or handlers wait for one another.
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

    /// Provides a value for [`HandlerState<T>`](crate::HandlerState) arguments; a second one of the
    /// same type replaces the first.
    #[must_use]
    pub fn with_state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.services.state.insert(value);
        self
    }

    /// Sets which handlers run. Default: all that are linked into the program,
    /// [`Router::registered`].
    #[must_use]
    pub fn with_router(mut self, router: Router) -> Self {
        self.router = Some(router);
        self
    }

    /// Sets which consumers run in this process; other processes run the others. A second call
    /// replaces the names of the first. Default: all that have handlers.
    #[must_use]
    pub fn with_consumers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.consumers = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Names handlers without which the inbox does not start: by crate (`my_handlers`), module,
    /// function (`my_handlers::mail::send_receipt`) or consumer. A second call adds names.
    ///
    /// The linker drops a crate that nothing names, and its handlers are missing without a word
    /// while the others run. A program that takes handlers from several crates lists them here and
    /// links them with [`link_handlers!`](crate::link_handlers). Default: nothing is expected.
    #[must_use]
    pub fn expect_handlers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.expected.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets where a consumer starts in the stream if it is new. Default: [`StartAt::Beginning`], so
    /// that a new consumer handles all that the stream still has. A second call for the same
    /// consumer replaces the first.
    ///
    /// A consumer that exists on the broker keeps its place, whatever is set here; its log says so
    /// if it started elsewhere. One that somebody deletes on the broker starts like a new one. With
    /// strategy `sequence` the messages before the start are not waited for: an aggregate begins
    /// with its first message after it.
    ///
    /// An unknown consumer is an error at the start of the inbox.
    #[must_use]
    pub fn with_start(mut self, consumer: impl Into<String>, start_at: StartAt) -> Self {
        self.starts.insert(consumer.into(), start_at);
        self
    }

    /// Replaces the configuration. Default: [`InboxConfig::default`].
    #[must_use]
    pub fn with_config(mut self, config: InboxConfig) -> Self {
        self.health = InboxHealthCheck::new(config.stuck_after);
        self.config = config;
        self
    }

    outbox_core::__setters! {
        /// Sets where and within which limits handlers record follow-up events. Default:
        /// [`OutboxConfig::default`].
        fn with_outbox(outbox: OutboxConfig, in services);
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
        /// Sets how older versions of events become those that the handlers know. Default: not at
        /// all; see [`InboxConfig::unknown_version`](InboxConfig#structfield.unknown_version).
        fn with_upcasters(upcasters: Upcasters, in services);
    }

    /// Puts code around every run of a handler. May be called several times; the first one given is
    /// the outermost.
    #[must_use]
    pub fn with_middleware(mut self, middleware: impl Middleware) -> Self {
        self.services.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets where handlers of the strategy [`external`](crate::Strategy::External) are
    /// deduplicated. Only they need it.
    #[must_use]
    pub fn with_dedup_store(mut self, store: impl DedupStore) -> Self {
        self.services.store = Some(Arc::new(store));
        self
    }

    /// Calls `hook` after each message that took effect. The inbox calls it after the commit and
    /// once at most: a crash in between loses the call. It must not block. A panic is logged, and
    /// changes nothing. A second call replaces the hook.
    #[must_use]
    pub fn on_handled(mut self, hook: impl Fn(Handled<'_>) + Send + Sync + 'static) -> Self {
        self.services.hooks.on_handled = Some(Arc::new(hook));
        self
    }

    /// Calls `hook` after each message that was dead-lettered, and after each dead letter that was
    /// tried again and failed again, under the conditions of [`Self::on_handled`].
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(DeadDelivery<'_>) + Send + Sync + 'static) -> Self {
        self.services.hooks.on_dead_letter = Some(Arc::new(hook));
        self
    }

    /// Tells how the inbox is doing while it runs. Call it after [`Self::with_config`] and before
    /// [`Self::run`]; the answer can be asked from anywhere. Of an inbox that runs several times,
    /// it tells of the run that began last.
    ///
    /// With axum, liveness and readiness of a process that handles messages:
    ///
    /// ```
    /// use axum::Router;
    /// use axum::extract::State;
    /// use axum::http::StatusCode;
    /// use axum::routing::get;
    /// use outbox_inbox::InboxHealthCheck;
    ///
    /// /// Fails if the process should be restarted, or somebody should look at broker and database.
    /// async fn live(State(inbox): State<InboxHealthCheck>) -> (StatusCode, String) {
    ///     let health = inbox.now();
    ///     (status(health.is_alive()), health.to_string())
    /// }
    ///
    /// /// Fails until all consumers receive, and while one of them does not.
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

    /// Runs until `shutdown` is cancelled. Then it waits for running handlers for
    /// [`InboxConfig::shutdown_timeout`], cancels those that still run, and gives the rest back to
    /// the broker. It returns at the latest two seconds after that time.
    ///
    /// Outages of database or broker do not end it, not even at the start.
    ///
    /// # Errors
    ///
    /// [`InboxError`], at the start; later only [`InboxError::Panicked`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the running handlers. They are rolled back in the background,
    /// and the broker delivers their messages again.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<InboxReport, InboxError> {
        self.run_observed(shutdown.child_token(), false).await
    }

    /// Runs until no consumer has anything left to do, for tests and for jobs that run to
    /// completion. A message that fails is waited for, through all its delays.
    ///
    /// It takes up the dead letters that were marked to be tried again before it began, at most 100
    /// per consumer.
    ///
    /// Handlers record follow-up events but do not publish them: drain a relay, then the inbox
    /// again.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    ///
    /// # Cancellation
    ///
    /// As [`Self::run`].
    pub async fn drain(&self) -> Result<InboxReport, InboxError> {
        self.run_observed(CancellationToken::new(), true).await
    }
}

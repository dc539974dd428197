//! An inbox: what it is given, what is checked at its start, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{
    Catalogue, CatalogueError, DeadLetterSink, DedupStore, DedupStoreError, Subscriber, SubscriberError,
};
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, Shared, Stop};
use super::dispatch::Dispatcher;
use super::idle::Idle;
use super::report::{InboxReport, Tally};
use crate::config::InboxConfig;
use crate::database::{Database, Trouble, missing_feature, trouble};
use crate::dedup::sql::InboxSql;
use crate::handler::{StateMap, describe};
use crate::hook::{DeadDelivery, Handled, Hooks};
use crate::layer::Middleware;
use crate::panics::guard_async;
use crate::preflight;
use crate::retention;
use crate::router::Router;
use crate::start::{Problem, StartError};
use crate::telemetry;
use crate::upcast::Upcasters;

/// How long a shutdown waits for rollbacks after it has cancelled the handlers.
const ROLLBACK_GRACE: Duration = Duration::from_secs(2);

/// Waits while the database cannot be reached at the start.
const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(5),
};

/// Runs the handlers of this program on the messages of a subscriber.
///
/// ```
/// # use outbox_core::testing::MemoryBroker;
/// # use outbox_inbox::{Inbox, InboxError};
/// # async fn demo(db: sea_orm::DatabaseConnection, broker: MemoryBroker) -> Result<(), InboxError> {
/// # struct Mailer;
/// let shutdown = outbox_core::shutdown::on_signals();
/// let report = Inbox::new(db, broker.subscriber()).state(Mailer).run(shutdown).await?;
/// println!("handled {} messages", report.handled);
/// # Ok(())
/// # }
/// ```
pub struct Inbox<S> {
    db: DatabaseConnection,
    subscriber: Arc<S>,
    state: StateMap,
    router: Option<Router>,
    consumers: Option<Vec<String>>,
    config: InboxConfig,
    outbox: OutboxConfig,
    names: TableNames,
    upcasters: Upcasters,
    middleware: Vec<Arc<dyn Middleware>>,
    store: Option<Arc<dyn DedupStore>>,
    hooks: Hooks,
}

impl<S> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("state", &self.state)
            .field("consumers", &self.consumers)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Why an inbox cannot start. Once it runs it does not fail: it backs off and goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The event types linked into this program contradict each other.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Handlers, state or configuration do not fit together.
    #[error(transparent)]
    Start(#[from] StartError),
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
    /// A consumer panicked outside of its messages. All others were stopped as in a shutdown; start the inbox again.
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
        Self {
            db,
            subscriber: Arc::new(subscriber),
            state: StateMap::new(),
            router: None,
            consumers: None,
            config: InboxConfig::default(),
            outbox: OutboxConfig::default(),
            names: TableNames::default(),
            upcasters: Upcasters::default(),
            middleware: Vec::new(),
            store: None,
            hooks: Hooks::default(),
        }
    }

    /// Provides a value for [`State<T>`](crate::State) arguments; a second one of the same type replaces the first.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.insert(value);
        self
    }

    /// Runs the handlers of this router instead of all linked ones.
    #[must_use]
    pub fn router(mut self, router: Router) -> Self {
        self.router = Some(router);
        self
    }

    /// Runs only these consumers in this process. Others that are linked as well are left to other processes.
    #[must_use]
    pub fn consumers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.consumers = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Replaces the configuration.
    #[must_use]
    pub fn config(mut self, config: InboxConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets where and within which limits handlers record follow-up events.
    #[must_use]
    pub fn outbox(mut self, config: OutboxConfig) -> Self {
        self.outbox = config;
        self
    }

    /// Sets the names of the inbox tables.
    #[must_use]
    pub fn names(mut self, names: TableNames) -> Self {
        self.names = names;
        self
    }

    /// Sets how older versions of events become those that the handlers know.
    #[must_use]
    pub fn upcasters(mut self, upcasters: Upcasters) -> Self {
        self.upcasters = upcasters;
        self
    }

    /// Puts code around every run of a handler. The first one given is the outermost.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets where handlers of the strategy [`external`](crate::Strategy::External) are deduplicated.
    #[must_use]
    pub fn dedup_store(mut self, store: impl DedupStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Calls a function after each message that took effect, and for duplicates whose handler asks for it
    /// ([`OnDuplicate::Result`](crate::OnDuplicate::Result)). It is called after the commit, once at most: a crash in between loses
    /// the call. It must not block. A panic is logged, and changes nothing.
    #[must_use]
    pub fn on_handled(mut self, hook: impl Fn(Handled<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_handled = Some(Arc::new(hook));
        self
    }

    /// Calls a function after each message that was dead-lettered, and each dead letter that was tried again and failed again, under the conditions of
    /// [`Self::on_handled`].
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(DeadDelivery<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_dead_letter = Some(Arc::new(hook));
        self
    }

    /// Sends a copy of each dead letter somewhere else too, after the commit. The table stays the truth: a crash in between loses the copy.
    #[must_use]
    pub fn dead_letter_sink(mut self, sink: impl DeadLetterSink) -> Self {
        self.hooks.sink = Some(Arc::new(sink));
        self
    }

    /// Runs until `shutdown` is cancelled, then finishes what is running within [`InboxConfig::shutdown_timeout`] and gives the rest back to
    /// the broker. Returns at the latest two seconds after that time.
    ///
    /// Outages of database or broker do not end it, not even at the start.
    ///
    /// # Errors
    ///
    /// [`InboxError`], at the start; later only [`InboxError::Panicked`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the running handlers; they are rolled back in the background, and their messages delivered again.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<InboxReport, InboxError> {
        self.run_until(shutdown.child_token(), false).await
    }

    /// Runs until no consumer has anything left to do, for tests. A message that fails is waited for, through all its delays.
    ///
    /// Follow-up events are recorded, not published: run a relay and drain again.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub async fn drain_until_idle(&self) -> Result<InboxReport, InboxError> {
        self.run_until(CancellationToken::new(), true).await
    }

    async fn run_until(&self, soft: CancellationToken, drain: bool) -> Result<InboxReport, InboxError> {
        let stop = Stop {
            soft,
            hard: CancellationToken::new(),
        };
        // If this future is dropped, so are the guards, and everything stops.
        let _guards = (stop.soft.clone().drop_guard(), stop.hard.clone().drop_guard());

        let router = self.check()?;
        let Some(shared) = self.connect(&stop).await? else {
            return Ok(InboxReport::default());
        };
        let consumers: Vec<_> = router
            .consumers()
            .into_iter()
            .map(|name| Arc::new(Consumer::new(name, router.handlers(), shared.clone())))
            .collect();
        self.check_surroundings(&router, &stop).await?;
        telemetry::describe();
        let idle = drain.then(|| Arc::new(Idle::new(consumers.len())));
        let tasks = TaskTracker::new();
        let (broken, mut breaks) = mpsc::unbounded_channel();
        // All are subscribed before the first receives, so that an inbox that cannot start has handled nothing.
        let mut dispatchers = Vec::with_capacity(consumers.len());
        for (index, consumer) in consumers.iter().enumerate() {
            dispatchers.push(Dispatcher::new(
                self.subscriber.clone(),
                consumer.clone(),
                self.subscribe(consumer, &stop).await?,
                stop.clone(),
                tasks.clone(),
                idle.clone().map(|idle| (idle, index)),
            ));
        }
        for (dispatcher, consumer) in dispatchers.into_iter().zip(&consumers) {
            tracing::info!(consumer = consumer.name, "consumer started");
            let (soft, broken, consumer) = (stop.soft.clone(), broken.clone(), consumer.name);
            tasks.spawn(async move {
                if let Err(error) = guard_async("consumer", || dispatcher.run()).await {
                    tracing::error!(consumer, %error, "the inbox stops, because a consumer cannot go on");
                    let reason = error.to_string();
                    // Nobody listens if the caller has gone away.
                    let _ = broken.send(InboxError::Panicked { consumer, reason });
                    soft.cancel();
                }
            });
        }
        if let Some(every) = self.config.purge_every {
            let (db, sql, stop) = (self.db.clone(), shared.sql.clone(), stop.soft.clone());
            tasks.spawn(retention::run(db, sql, every, stop));
        }

        stop.soft.cancelled().await;
        tasks.close();
        if timeout(self.config.shutdown_timeout, tasks.wait()).await.is_err() {
            stop.hard.cancel();
            if timeout(ROLLBACK_GRACE, tasks.wait()).await.is_err() {
                tracing::warn!(
                    tasks = tasks.len(),
                    "some handlers could not be rolled back in time; they end in the background"
                );
            }
        }
        let report = shared.tally.report();
        tracing::info!(?report, "inbox stopped");
        breaks.try_recv().map_or(Ok(report), Err)
    }

    /// Finds everything that can be known to fail without asking anybody.
    fn check(&self) -> Result<Router, InboxError> {
        Catalogue::linked()?;
        let mut router = self.router.clone().unwrap_or_else(Router::registered);
        let mut problems = Vec::new();
        if let Some(wanted) = &self.consumers {
            let available = router.consumers();
            for name in wanted.iter().filter(|name| !available.contains(&name.as_str())) {
                problems.push(Problem::UnknownConsumer {
                    name: name.clone(),
                    available: available.clone(),
                });
            }
            // What is wrong with other consumers is another process's concern.
            router = router.only(wanted);
        }
        if problems.is_empty() {
            problems.extend(router.problems(&self.state));
        }
        let handlers = router.handlers();
        problems.extend(preflight::settings(handlers, &self.config, self.store.is_some()));
        problems.extend(self.upcasters.problems(handlers));
        problems.extend(self.config.problems());
        let backend = self.db.get_database_backend();
        problems.extend(missing_feature(backend).map(|feature| {
            Problem::Config(format!(
                "feature `{feature}` of outbox-inbox is not enabled; enable it in Cargo.toml"
            ))
        }));
        for names in [&self.names, &self.outbox.names] {
            problems.extend(names.check(backend).err().map(Problem::Names));
        }
        StartError::unless_empty(problems)?;
        Ok(router)
    }

    /// Looks at the stream and the deduplication store. What cannot be reached now is not waited for: it is checked again at the next start.
    async fn check_surroundings(&self, router: &Router, stop: &Stop) -> Result<(), InboxError> {
        match stop.soft.run_until_cancelled(self.subscriber.facts()).await {
            Some(Ok(facts)) => {
                let (problem, warning) = preflight::stream(&facts, router.handlers(), &self.config);
                if let Some(warning) = warning {
                    tracing::warn!("{warning}");
                }
                StartError::unless_empty(problem.into_iter().collect())?;
            }
            Some(Err(error)) => {
                tracing::warn!(error = %describe(&error), "the stream could not be looked at, so what the inbox remembers is not checked against it");
            }
            None => {}
        }
        let Some(store) = &self.store else {
            return Ok(());
        };
        match store.preflight(self.config.keep).await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!("deduplication store: {warning}");
                }
                Ok(())
            }
            Err(error @ DedupStoreError::Configuration { .. }) => Err(InboxError::DedupStore(error)),
            Err(error) => {
                tracing::warn!(error = %describe(&error), "the deduplication store cannot be reached yet");
                Ok(())
            }
        }
    }

    /// Looks at the database; waits for it if it cannot be reached. `None`: a shutdown came first.
    async fn connect(&self, stop: &Stop) -> Result<Option<Arc<Shared>>, InboxError> {
        let sql = InboxSql::new(self.db.get_database_backend(), &self.names, self.config.keep);
        let mut failures = 0;
        let database = loop {
            let Some(inspected) = stop.soft.run_until_cancelled(self.inspect(&sql)).await else {
                return Ok(None);
            };
            match inspected {
                Ok(database) => break database,
                Err(error) if trouble(&error) == Trouble::Statement => return Err(InboxError::Tables(error)),
                Err(error) => {
                    failures += 1;
                    let pause = TROUBLE.delay(failures, &mut fastrand::Rng::new());
                    tracing::warn!(error = %describe(&error), ?pause, "database cannot be reached, inbox waits");
                    if stop
                        .soft
                        .run_until_cancelled(tokio::time::sleep(pause))
                        .await
                        .is_none()
                    {
                        return Ok(None);
                    }
                }
            }
        };
        Ok(Some(Arc::new(Shared {
            database,
            sql,
            state: self.state.clone(),
            outbox: self.outbox.clone(),
            config: self.config.clone(),
            upcasters: self.upcasters.clone(),
            middleware: self.middleware.clone(),
            store: self.store.clone(),
            hooks: self.hooks.clone(),
            tally: Tally::default(),
        })))
    }

    async fn inspect(&self, sql: &InboxSql) -> Result<Database, DbErr> {
        let database = Database::inspect(self.db.clone()).await?;
        for probe in sql.probe() {
            database.pool().query_one_raw(probe).await?;
        }
        Ok(database)
    }

    /// Subscribes once. What heals is left to the receiving loop, what does not is an error here.
    async fn subscribe(
        &self,
        consumer: &Consumer,
        stop: &Stop,
    ) -> Result<Option<S::Subscription>, InboxError> {
        match stop
            .soft
            .run_until_cancelled(self.subscriber.subscribe(&consumer.spec()))
            .await
        {
            None => Ok(None),
            Some(Ok(subscription)) => Ok(Some(subscription)),
            Some(Err(source @ SubscriberError::Configuration { .. })) => Err(InboxError::Subscriber {
                consumer: consumer.name,
                source,
            }),
            Some(Err(error)) => {
                tracing::warn!(consumer = consumer.name, error = %describe(&error), "cannot subscribe yet, tried again");
                Ok(None)
            }
        }
    }
}

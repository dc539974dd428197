//! Lifecycle of an inbox: checks, database, subscriptions, consumers, shutdown.
//!
//! Invariants: an inbox that cannot start has handled nothing. A shutdown is bounded.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{Catalogue, DedupStoreError, Subscriber, SubscriberError, shutdown};
use outbox_sea_orm::{ConnectError, check_sessions, connect_error, why_no_connection};
use sea_orm::{ConnectionTrait as _, DbErr};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, Shared, Stop};
use super::dispatcher::Dispatcher;
use super::inbox::{Inbox, InboxError};
use super::purge::may_forget;
use super::receive::pause;
use super::receive::receiver::Idleness;
use super::report::{InboxReport, Tally};
use crate::database::{Database, Trouble, missing_feature, trouble};
use crate::dedup::sql::InboxSql;
use crate::handler::{Registration, describe};
use crate::operate::watch::Watch;
use crate::panics::guard_async;
use crate::preflight;
use crate::retention;
use crate::router::Router;
use crate::start_error::{Problem, StartError};
use crate::telemetry;
use crate::{rights, server};

const WATCH_EVERY: Duration = Duration::from_secs(15);

const ROLLBACK_GRACE: Duration = Duration::from_secs(2);

const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(5),
};

impl<S: Subscriber> Inbox<S> {
    pub(crate) async fn run_observed(
        &self,
        soft: CancellationToken,
        drain: bool,
    ) -> Result<InboxReport, InboxError> {
        let run = self.health.begin();
        let stop = Stop {
            soft,
            hard: CancellationToken::new(),
        };
        let _guards = (stop.soft.clone().drop_guard(), stop.hard.clone().drop_guard());
        let ended = self.run_until(&stop, drain).await;
        run.ended(ended.as_ref().err().map(|error| describe(error)));
        ended
    }

    async fn run_until(&self, stop: &Stop, drain: bool) -> Result<InboxReport, InboxError> {
        let router = self.check()?;
        let Some(shared) = self.connect(&router, stop).await? else {
            return Ok(InboxReport::default());
        };
        let consumers: Vec<_> = router
            .consumers()
            .into_iter()
            .map(|name| {
                Arc::new(Consumer::new(
                    name,
                    router.handlers(),
                    shared.clone(),
                    self.starts.get(name).copied().unwrap_or_default(),
                ))
            })
            .collect();
        self.check_surroundings(&router, stop).await?;
        telemetry::describe();
        if !pause::first_look(&shared, &consumers, &stop.soft).await {
            return Ok(InboxReport::default());
        }
        let tasks = TaskTracker::new();
        let mut broken = self
            .start(router.handlers(), &consumers, stop, &tasks, drain)
            .await?;
        tasks.spawn(self.purge(router.handlers().to_vec(), shared.sql.clone(), stop.soft.clone()));
        tasks.spawn(pause::follow(
            shared.clone(),
            consumers.clone(),
            stop.soft.clone(),
        ));
        if cfg!(feature = "metrics") {
            let names = consumers.iter().map(|consumer| consumer.name.to_owned());
            let watch = Watch::new(self.db.clone(), shared.sql.clone(), names.collect());
            let (subscriber, soft) = (self.subscriber.clone(), stop.soft.clone());
            tasks.spawn(async move { watch.run(&*subscriber, WATCH_EVERY, soft).await });
        }
        let vitals = consumers.iter().map(|consumer| consumer.vitals.clone());
        self.health.running(vitals);

        stop.soft.cancelled().await;
        self.health.stopping();
        tasks.close();
        self.end(&tasks, stop).await;
        let report = shared.tally.report();
        tracing::info!(?report, "inbox stopped");
        broken.try_recv().map_or(Ok(report), Err)
    }

    async fn start(
        &self,
        handlers: &[Registration],
        consumers: &[Arc<Consumer>],
        stop: &Stop,
        tasks: &TaskTracker,
        drain: bool,
    ) -> Result<UnboundedReceiver<InboxError>, InboxError> {
        let mut idleness = drain.then(|| Idleness::of_all(consumers.len()));
        let mut dispatchers = Vec::with_capacity(consumers.len());
        for consumer in consumers {
            dispatchers.push(Dispatcher::new(
                self.subscriber.clone(),
                consumer.clone(),
                self.subscribe(consumer, stop).await?,
                stop.clone(),
                tasks.clone(),
                idleness.as_mut().and_then(Iterator::next),
            ));
        }
        let names = |consumer: &str| -> Vec<&str> {
            let handlers = handlers.iter().filter(|handler| handler.consumer == consumer);
            handlers.map(|handler| handler.handler).collect()
        };
        let (broken, breaks) = mpsc::unbounded_channel();
        for (dispatcher, consumer) in dispatchers.into_iter().zip(consumers) {
            tracing::info!(consumer = consumer.name, handlers = ?names(consumer.name), "consumer started");
            let (consumer, soft, broken) = (consumer.clone(), stop.soft.clone(), broken.clone());
            tasks.spawn(run_consumer(dispatcher, consumer, soft, broken));
        }
        Ok(breaks)
    }

    fn purge(
        &self,
        handlers: Vec<Registration>,
        sql: InboxSql,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<S> {
        let (db, subscriber, config) = (self.db.clone(), self.subscriber.clone(), self.config.clone());
        async move {
            let may_forget = || may_forget(&*subscriber, &handlers, &config, &stop);
            retention::run(db, sql, config.purge_every, may_forget, stop.clone()).await;
        }
    }

    async fn end(&self, tasks: &TaskTracker, stop: &Stop) {
        let (limit, hurry) = (self.config.shutdown_timeout, shutdown::hurry());
        tokio::select! {
            biased;
            () = tasks.wait() => return,
            () = hurry.cancelled() => {
                tracing::warn!("second signal: running handlers are cancelled and rolled back");
            }
            () = tokio::time::sleep(limit) => {
                tracing::warn!(?limit, "shutdown timeout: running handlers are cancelled and rolled back");
            }
        }
        stop.hard.cancel();
        if timeout(ROLLBACK_GRACE, tasks.wait()).await.is_err() {
            tracing::warn!(
                tasks = tasks.len(),
                "rollback of some handlers takes longer and continues in the background"
            );
        }
    }

    fn check(&self) -> Result<Router, InboxError> {
        Catalogue::linked()?;
        let mut router = self.router.clone().unwrap_or_else(Router::registered);
        let mut problems = router.missing(&self.expected);
        let wanted = self.consumers.iter().flatten();
        let named = self.starts.keys().chain(wanted);
        problems.extend(named.filter_map(|name| router.unknown(name)));
        if let Some(wanted) = &self.consumers {
            router = router.only(wanted);
        }
        if problems.is_empty() {
            problems.extend(router.problems(&self.services.state));
        }
        let handlers = router.handlers();
        let has_store = self.services.store.is_some();
        problems.extend(preflight::settings(handlers, &self.config, has_store));
        problems.extend(self.services.upcasters.problems(handlers));
        problems.extend(self.config.problems().into_iter().map(Problem::config));
        let backend = self.db.get_database_backend();
        problems.extend(missing_feature(backend).map(|feature| {
            Problem::config(format!(
                "feature `{feature}` of outbox-inbox is not enabled; enable it in Cargo.toml"
            ))
        }));
        for names in [&self.names, &self.services.outbox.names] {
            problems.extend(
                names
                    .check(backend)
                    .err()
                    .map(|error| Problem::new(error.to_string())),
            );
        }
        StartError::unless_empty(problems)?;
        Ok(router)
    }

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
                tracing::warn!(error = %describe(&error), "stream could not be read, so its retention is not checked, and no inbox rows are deleted");
            }
            None => {}
        }
        let Some(store) = &self.services.store else {
            return Ok(());
        };
        match store.preflight(self.config.retention).await {
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

    async fn connect(&self, router: &Router, stop: &Stop) -> Result<Option<Arc<Shared>>, InboxError> {
        let sql = InboxSql::new(self.db.get_database_backend(), &self.names, self.config.retention);
        let mut failures = 0;
        let database = loop {
            let inspect = async {
                tokio::select! {
                    biased;
                    inspected = self.inspect(&sql, router) => inspected,
                    // Without this query, the pool would retry to connect for 30 s and then return
                    // an error without the cause.
                    why = why_no_connection(&self.db) => Err(why),
                }
            };
            let Some(inspected) = stop.soft.run_until_cancelled(inspect).await else {
                return Ok(None);
            };
            let kept = check_sessions(&self.db, inspected.as_ref().err()).await;
            match kept.and_then(|()| inspected.map_err(|error| connect_error(&self.db, error))) {
                Ok((database, problems)) => {
                    StartError::unless_empty(problems)?;
                    if failures > 0 {
                        tracing::info!("the database answers");
                    }
                    break database;
                }
                Err(lasting) if lasting.is_lasting() => return Err(InboxError::Connect(lasting)),
                Err(ConnectError::Failed { source, .. }) if trouble(&source) == Trouble::Statement => {
                    return Err(InboxError::Tables(source));
                }
                Err(error) => {
                    failures += 1;
                    let pause = TROUBLE.delay(failures, &mut fastrand::Rng::new());
                    let error = describe(&error);
                    if failures == 1 {
                        tracing::warn!(error, "database cannot be reached, inbox waits");
                    }
                    self.health
                        .cannot_start(&format!("the database cannot be reached: {error}"));
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
        let consumers = router.consumers().len();
        let jobs = consumers * self.config.concurrency;
        if let Some(warning) = rights::pool_warning(rights::connections_max(&self.db), consumers, jobs) {
            tracing::warn!("{warning}");
        }
        Ok(Some(Arc::new(Shared {
            sql: sql.limited(database.lock_limit()),
            database,
            services: self.services.clone(),
            config: self.config.clone(),
            tally: Tally::default(),
            belongs: {
                let subscriber = self.subscriber.clone();
                Arc::new(move |message, subject, fixed| subscriber.belongs(message, subject, fixed))
            },
        })))
    }

    async fn inspect(&self, sql: &InboxSql, router: &Router) -> Result<(Database, Vec<Problem>), DbErr> {
        let database = Database::inspect(self.db.clone()).await?;
        if let Some(problem) = database.problem() {
            return Ok((database, vec![problem]));
        }
        let allows_untested = self.config.allow_untested_engine;
        let mut problems = server::problems(database.pool(), allows_untested).await?;
        if problems.is_empty() {
            problems =
                rights::problems(database.pool(), sql, &self.services.outbox, router.handlers()).await?;
        }
        if problems.is_empty() {
            for probe in sql.probe() {
                database.pool().query_one_raw(probe).await?;
            }
        }
        Ok((database, problems))
    }

    /// Subscribes a consumer that is not paused. The subscription of a paused consumer would
    /// recreate a consumer that an operator has deleted.
    async fn subscribe(
        &self,
        consumer: &Consumer,
        stop: &Stop,
    ) -> Result<Option<S::Subscription>, InboxError> {
        if consumer.pause.is_paused() {
            return Ok(None);
        }
        match stop
            .soft
            .run_until_cancelled(self.subscriber.subscribe(&consumer.spec()))
            .await
        {
            None => Ok(None),
            Some(Ok(subscription)) => {
                consumer.vitals.subscribed();
                Ok(Some(subscription))
            }
            Some(Err(source @ SubscriberError::Configuration { .. })) => Err(InboxError::Subscriber {
                consumer: consumer.name,
                source,
            }),
            Some(Err(error)) => {
                let error = describe(&error);
                tracing::warn!(consumer = consumer.name, error, "cannot subscribe yet, retried");
                consumer.vitals.trouble(&error);
                Ok(None)
            }
        }
    }
}

async fn run_consumer<S: Subscriber>(
    dispatcher: Dispatcher<S>,
    consumer: Arc<Consumer>,
    soft: CancellationToken,
    broken: UnboundedSender<InboxError>,
) {
    let Err(panic) = guard_async("consumer", || dispatcher.run()).await else {
        consumer.vitals.stopped(None);
        return;
    };
    let (consumer, vitals, reason) = (consumer.name, &consumer.vitals, panic.to_string());
    tracing::error!(
        consumer,
        error = reason,
        "inbox stops, because a consumer panicked"
    );
    vitals.stopped(Some(reason.clone()));
    let _ = broken.send(InboxError::Panicked { consumer, reason });
    soft.cancel();
}

//! The relay: moves committed messages from the outbox to the broker.
//!
//! One cycle is *lease → fetch → publish → settle*. Invariants:
//!
//! * no database transaction is open while the relay talks to the broker;
//! * at most one message of an aggregate is unconfirmed, and none overtakes another (`schedule`);
//! * nothing is published after the leases could have run out (`ownership`);
//! * trouble of the broker pauses the relay and uses no attempts (`policy`).
//!
//! The outside is behind seams: store, publisher, Tokio's clock (which tests pause), and a seeded random generator. Absent
//! here: recording, retention, and anything that knows a database or broker.

mod config;
mod ownership;
mod policy;
mod pump;
mod schedule;

use std::num::NonZeroU32;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::catalogue::{Catalogue, CatalogueError};
use crate::publisher::Publisher;
use crate::store::{FetchRequest, FetchedRow, OutboxStore, OwnerId, Settlement, StoreError};
use crate::wake;

pub use config::{PoisonPolicy, RelayConfig};

use ownership::Ownership;
use policy::{BackingOff, Breaker};

/// How long a shutdown waits, after the last confirmation, for the database to take the verdicts.
const SETTLE_GRACE: Duration = Duration::from_secs(2);

/// How long a shutdown waits for the leases to be given back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Messages fetched while the broker is failing.
const PROBE: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// Drains an outbox to a broker.
///
/// ```
/// # use outbox_core::{Relay, testing::{MemoryBroker, MemoryStore}};
/// # async fn demo() -> Result<(), outbox_core::RelayError> {
/// # let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// let shutdown = outbox_core::shutdown::on_signals();
/// let report = Relay::new(store, broker.publisher()).run(shutdown).await?;
/// println!("published {} messages", report.published);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay<S, P> {
    store: S,
    publisher: P,
    config: RelayConfig,
}

/// What a relay did from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayReport {
    /// Messages confirmed by the broker and settled.
    pub published: u64,
    /// Of those, messages that the broker already had from an earlier attempt.
    pub duplicates: u64,
    /// Publishes that failed and will be tried again.
    pub failed: u64,
    /// Messages given up; see [`OutboxAdmin`](crate::OutboxAdmin).
    pub parked: u64,
}

/// Why a relay cannot start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The event types linked into this program contradict each other.
    #[error("event types are described inconsistently")]
    Catalogue(#[from] CatalogueError),
    /// The configuration cannot work.
    #[error("relay configuration: {0}")]
    Config(String),
    /// The database failed; only [`Relay::drain`] gives up on this, [`Relay::run`] keeps trying.
    #[error("outbox store failed")]
    Store(#[from] StoreError),
    /// The broker refused or did not answer; only [`Relay::drain`] gives up on this.
    #[error("broker did not take the messages: {0}")]
    Broker(String),
}

impl<S: OutboxStore, P: Publisher> Relay<S, P> {
    /// A relay with the default configuration.
    pub fn new(store: S, publisher: P) -> Self {
        Self {
            store,
            publisher,
            config: RelayConfig::default(),
        }
    }

    /// Replaces the configuration.
    #[must_use]
    pub fn with_config(mut self, config: RelayConfig) -> Self {
        self.config = config;
        self
    }

    /// Drains until `shutdown` is cancelled, then finishes what is in flight within
    /// [`RelayConfig::shutdown_timeout`], settles it and gives the leases back; a database that hangs adds at most three seconds.
    ///
    /// A failing database or broker does not end it: it backs off and goes on where it stopped. Dropping the
    /// future is like a crash: nothing is lost, but the leases must run out and what was in flight is published again.
    ///
    /// # Errors
    ///
    /// [`RelayError::Catalogue`] and [`RelayError::Config`], both at the start.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<RelayReport, RelayError> {
        Catalogue::linked()?;
        self.config.check()?;
        let mut run = Run::new(self);
        tracing::info!(owner = %run.ownership.owner(), "relay started");
        let mut commits = wake::Listener::new();
        let mut idle = self.config.poll_min;
        // The store's work goes on by itself when its future is dropped, so a database that hangs cannot hold up the shutdown.
        let overdue = async {
            shutdown.cancelled().await;
            tokio::time::sleep(self.config.shutdown_timeout + SETTLE_GRACE).await;
        };
        tokio::pin!(overdue);
        while !shutdown.is_cancelled() {
            let cycle = tokio::select! {
                biased;
                cycle = run.cycle(&shutdown) => cycle,
                () = &mut overdue => break,
            };
            let pause = match cycle {
                Ok(Cycle { fetched: 0, .. }) => {
                    // Nothing due: poll more and more rarely, down to the configured interval.
                    idle = (idle * 2).min(self.config.poll_max);
                    idle
                }
                Ok(Cycle {
                    failure: Some(reason),
                    broker_fails: true,
                    ..
                }) => {
                    let pause = run.breaker.trip();
                    tracing::warn!(%reason, ?pause, "broker trouble, relay pauses");
                    // A commit must not cut the pause short, or writers would drive the retries.
                    interruptible(tokio::time::sleep(pause), &shutdown).await;
                    continue;
                }
                Ok(Cycle {
                    failure: Some(reason),
                    progress,
                    ..
                }) => {
                    tracing::warn!(%reason, "messages were not taken, their aggregates wait");
                    if !progress {
                        // Others may be waiting behind them, but not so urgently that the broker must be hammered.
                        interruptible(tokio::time::sleep(self.config.backoff.min), &shutdown).await;
                    }
                    continue;
                }
                Ok(_) => {
                    idle = self.config.poll_min;
                    continue; // More may be waiting.
                }
                Err(error) => {
                    let pause = run.breaker.trip();
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        ?pause,
                        "outbox store failed, relay pauses"
                    );
                    interruptible(tokio::time::sleep(pause), &shutdown).await;
                    continue;
                }
            };
            let woken = async {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = commits.notified() => {}
                }
            };
            interruptible(woken, &shutdown).await;
        }
        let release = run.ownership.release(&self.store);
        if tokio::time::timeout(RELEASE_TIMEOUT, release).await.is_err() {
            tracing::warn!("leases could not be released in time; they run out");
        }
        tracing::info!(owner = %run.ownership.owner(), report = ?run.report, "relay stopped");
        Ok(run.report)
    }

    /// Publishes everything that is due now and returns; for tests, and for jobs that run to completion.
    ///
    /// # Errors
    ///
    /// As [`Self::run`], and [`RelayError::Store`] or [`RelayError::Broker`] as soon as the store or the broker fails: what
    /// was settled stays settled, the rest is still pending.
    pub async fn drain(&self) -> Result<RelayReport, RelayError> {
        Catalogue::linked()?;
        self.config.check()?;
        let mut run = Run::new(self);
        let outcome = run.drain().await;
        run.ownership.release(&self.store).await;
        outcome.map(|()| run.report)
    }
}

/// Waits for `future` or for the shutdown, whichever is first.
async fn interruptible(future: impl Future<Output = ()>, shutdown: &CancellationToken) {
    let _ = shutdown.run_until_cancelled(future).await;
}

/// What one cycle found.
#[derive(Default)]
struct Cycle {
    fetched: usize,
    /// Whether anything was published.
    progress: bool,
    /// The broker took nothing at all, for reasons that are its own.
    broker_fails: bool,
    /// Why something was not taken, if so.
    failure: Option<String>,
}

/// The state of one run of a relay.
struct Run<'a, S, P> {
    relay: &'a Relay<S, P>,
    ownership: Ownership,
    breaker: Breaker,
    backing_off: BackingOff,
    /// Verdicts that the store has not taken yet. They go first: publishing more while nothing can be recorded only makes
    /// more copies.
    unsettled: Vec<Settlement>,
    report: RelayReport,
}

impl<'a, S: OutboxStore, P: Publisher> Run<'a, S, P> {
    fn new(relay: &'a Relay<S, P>) -> Self {
        let config = &relay.config;
        let mut rng = config
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self {
            relay,
            ownership: Ownership::new(OwnerId::fresh(), config.lease_ttl),
            breaker: Breaker::new(config.backoff, rng.fork()),
            backing_off: BackingOff::new(config.backoff, rng),
            unsettled: Vec::new(),
            report: RelayReport::default(),
        }
    }

    /// Cycles until nothing is due, giving up at the first failure.
    async fn drain(&mut self) -> Result<(), RelayError> {
        let never = CancellationToken::new();
        loop {
            let cycle = self.cycle(&never).await?;
            if let Some(reason) = cycle.failure {
                return Err(RelayError::Broker(reason));
            }
            if cycle.fetched == 0 {
                return Ok(());
            }
        }
    }

    async fn cycle(&mut self, shutdown: &CancellationToken) -> Result<Cycle, StoreError> {
        let Relay {
            store,
            publisher,
            config,
        } = self.relay;
        self.ownership.keep(store).await?;
        self.settle().await?;
        let Some(deadlines) = self.ownership.deadlines() else {
            return Ok(Cycle::default());
        };
        let rows = self.fetch().await?;
        let fetched = rows.len();
        if fetched == 0 {
            return Ok(Cycle::default());
        }

        let outcome = pump::publish(publisher, rows, config, deadlines, shutdown).await;
        // A crash here leaves published messages pending: the next owner publishes them again under the same ids, and
        // the broker or the inbox drops the copies.
        self.report.published += outcome.published;
        self.report.duplicates += outcome.duplicates;
        self.report.parked += outcome.parked;
        self.report.failed += outcome.failures.len() as u64;
        self.unsettled.extend(outcome.settlements);
        let progress = outcome.published > 0;
        let failure = outcome.failures.first().map(|failure| failure.reason.clone());
        let broker_fails = !progress
            && outcome
                .failures
                .iter()
                .any(|failure| policy::is_the_brokers(failure.class));
        if progress {
            self.breaker.reset();
        }
        for failure in outcome.failures {
            self.backing_off.add(failure.aggregate);
        }
        self.settle().await?;
        Ok(Cycle {
            fetched,
            progress,
            broker_fails,
            failure,
        })
    }

    async fn fetch(&mut self) -> Result<Vec<FetchedRow>, StoreError> {
        let Relay { store, config, .. } = self.relay;
        let leases = self.ownership.leases();
        let waiting = self.backing_off.aggregates();
        let request = |limit, excluding| FetchRequest {
            leases,
            limit,
            excluding,
        };
        if !self.breaker.is_tripped() {
            return store.fetch(request(config.batch, &waiting)).await;
        }
        // After a failure a few messages are enough to see whether the broker is back. Those of other aggregates first: if it is not the
        // broker but a crowd of messages that it will never take, they must not stand in the way of all others.
        let probe = config.batch.min(PROBE);
        let suspects = self.backing_off.suspects();
        let rows = store.fetch(request(probe, &suspects)).await?;
        if !rows.is_empty() {
            return Ok(rows);
        }
        store.fetch(request(probe, &waiting)).await
    }

    async fn settle(&mut self) -> Result<(), StoreError> {
        if self.unsettled.is_empty() {
            return Ok(());
        }
        let accepted = self
            .relay
            .store
            .settle(self.ownership.leases(), &self.unsettled)
            .await?;
        if accepted < self.unsettled.len() {
            // Their partitions have a new owner, who sends them again and settles them itself.
            tracing::warn!(
                refused = self.unsettled.len() - accepted,
                "leases were lost before settling"
            );
        }
        self.unsettled.clear();
        Ok(())
    }
}

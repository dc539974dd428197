//! The relay: moves committed messages from the outbox to the broker.
//!
//! Invariants:
//!
//! * no database transaction is open during a call to the broker;
//! * at most one message of an aggregate is unconfirmed (`in_flight`);
//! * the relay publishes nothing after its leases may have expired (`ownership`);
//! * failures of the broker pause the relay and use no attempts of messages (`policy`).

mod agreement;
mod checkup;
mod config;
mod engine;
mod in_flight;
mod outage;
mod ownership;
mod pauses;
mod policy;
mod poller;
pub mod reconcile;
mod share;
mod suspension;

use tokio_util::sync::CancellationToken;

use crate::catalogue::{Catalogue, CatalogueError};
use crate::failure::describe;
use crate::health::HealthCheck;
use crate::log::source::{Part, SecondSource};
use crate::message::{Aggregate, MessageId};
use crate::publisher::{FailureClass, PublishError, Publisher};
use crate::store::{OutboxStore, Registration, RelayMode, SetupKind, SetupProblem, StoreError, within};
use crate::telemetry;

pub use agreement::Disagreement;
pub use config::{EventPolicy, PoisonPolicy, RelayConfig, Retention};

use engine::{Engine, Mode};
use suspension::Clocks;

/// Publishes an outbox to a broker.
///
/// ```
/// # use outbox_core::Relay;
/// # use outbox_testing::{MemoryBroker, MemoryStore};
/// # async fn demo() -> Result<(), outbox_core::RelayError> {
/// # let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// let shutdown = outbox_core::shutdown::on_signals();
/// let report = Relay::new(store, broker.publisher()).run(shutdown).await?;
/// println!("published {} messages", report.published);
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
pub struct Relay<S, P> {
    store: S,
    publisher: P,
    config: RelayConfig,
    health: HealthCheck,
    #[debug(skip)]
    on_dead_letter: Option<Box<DeadLetterHook>>,
    clocks: Clocks,
    part: Part,
}

type DeadLetterHook = dyn Fn(&DeadMessage) + Send + Sync;

/// A dead letter for [`Relay::on_dead_letter`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadMessage {
    /// The row id.
    pub row_id: i64,
    /// Message id; `None`: unreadable.
    pub id: Option<MessageId>,
    /// Event type; `None`: unreadable.
    pub event_type: Option<String>,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The cause.
    pub error: String,
    /// Whether the aggregate is halted until the message is retried or skipped.
    pub halts: bool,
}

/// A run's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayReport {
    /// Confirmed and settled messages. After a lost lease a message may be missing in all counts,
    /// also for the other messages settled with it.
    pub published: u64,
    /// Messages already stored by the broker.
    pub duplicates: u64,
    /// Retried publish failures.
    pub failed: u64,
    /// Dead letters; a message counts each time it becomes a dead letter.
    pub dead_letters: u64,
}

/// A relay's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// Conflicting event types.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Invalid configuration.
    #[error("relay configuration: {0}")]
    Config(String),
    /// The database failed. From [`Relay::run`]: the database is not set up.
    #[error("outbox store failed")]
    Store(#[from] StoreError),
    /// A live relay of the outbox has another destination or source.
    #[error(transparent)]
    OtherDestination(Box<Disagreement>),
    /// The broker rejected a message or did not answer. From [`Relay::run`]: the stream is not set
    /// up.
    #[error("broker did not accept the messages: {0}")]
    Broker(String),
}

impl<S: OutboxStore, P: Publisher> Relay<S, P> {
    /// A relay with the default configuration.
    pub fn new(store: S, publisher: P) -> Self {
        let config = RelayConfig::default();
        Self {
            store,
            publisher,
            health: HealthCheck::of(&config),
            config,
            on_dead_letter: None,
            clocks: Clocks::default(),
            part: Part::default(),
        }
    }

    /// The table relay, with a second source.
    #[must_use]
    pub fn with_source(mut self, source: SecondSource) -> Self {
        self.part = Part::Table(source);
        self
    }

    /// The relay of a second source. `health` replaces [`Self::health`].
    #[must_use]
    pub fn as_source(mut self, source: SecondSource, health: HealthCheck) -> Self {
        self.part = Part::Source(source);
        self.health = health;
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub fn with_config(mut self, config: RelayConfig) -> Self {
        self.health = HealthCheck::of(&config);
        self.config = config;
        self
    }

    /// Calls `hook` for each recorded dead letter. The hook must not block; a panic is logged.
    /// After a crash or lost lease the call may be missing, also for messages that were settled
    /// with the message of the lost lease. [`OutboxAdmin::list`](crate::OutboxAdmin::list) is
    /// complete.
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(&DeadMessage) + Send + Sync + 'static) -> Self {
        self.on_dead_letter = Some(Box::new(hook));
        self
    }

    /// For tests: `lead` returns the wall clock's lead over Tokio's clock.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wall_clock(mut self, lead: impl Fn() -> time::Duration + Send + Sync + 'static) -> Self {
        self.clocks = Clocks::new(lead);
        self
    }

    /// Health, for any thread. Call before [`Self::run`].
    #[must_use]
    pub fn health(&self) -> HealthCheck {
        self.health.clone()
    }

    /// Publishes until `shutdown` is cancelled. Then waits for messages in flight for at most
    /// [`RelayConfig::shutdown_timeout`], settles them and releases the leases. A hanging database
    /// or broker adds at most four seconds.
    ///
    /// Relays share the partitions evenly. After a failure of database or broker the relay backs
    /// off and continues. Dropping the future is like a crash: no message is lost, leases must
    /// expire, and messages in flight are published again.
    ///
    /// # Errors
    ///
    /// `run` fails only at the start, for problems that need an operator:
    ///
    /// * [`RelayError::Catalogue`] or [`RelayError::Config`];
    /// * [`RelayError::Store`] if the database is not set up, rejects the login or is not trusted
    ///   ([`StoreError::Setup`]);
    /// * [`RelayError::OtherDestination`] if a live relay of the outbox publishes elsewhere;
    /// * [`RelayError::Broker`] if the stream is not set up.
    ///
    /// A database that is down at the start is checked when it answers. After the first check, a
    /// rejected login is retried. If the broker is down at the start, later setup problems are only
    /// logged.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<RelayReport, RelayError> {
        self.check()?;
        let unchecked = match shutdown.run_until_cancelled(self.preflight()).await {
            Some(checked) => checked?,
            None => return Ok(RelayReport::default()),
        };
        let mut engine = Engine::new(self, Mode::Run);
        if unchecked.store {
            engine.store_is_down();
        }
        let stop = shutdown.child_token();
        let run = async {
            let ended = engine.run(&stop).await;
            stop.cancel();
            ended
        };
        let (ended, checked) = tokio::join!(run, self.check_later(unchecked, &stop));
        checked?;
        ended
    }

    /// Publishes all due messages and returns; for tests and jobs. Takes only free partitions.
    ///
    /// # Errors
    ///
    /// As [`Self::run`], and [`RelayError::Store`] or [`RelayError::Broker`] at the first failure:
    /// settled messages stay settled, other messages stay pending. If the database rejects a single
    /// verdict ([`StoreError::Refused`]), `drain` processes all other messages before it returns
    /// the error.
    pub async fn drain(&self) -> Result<RelayReport, RelayError> {
        self.check()?;
        Engine::new(self, Mode::Drain)
            .run(&CancellationToken::new())
            .await
    }

    fn registration(&self) -> Registration {
        Registration::new(
            self.part.mode(),
            self.publisher.destination(),
            Some(self.config.retention),
        )
    }

    fn check(&self) -> Result<(), RelayError> {
        let catalogue = Catalogue::linked()?;
        self.config.check()?;
        telemetry::describe();
        if catalogue.iter().next().is_some() {
            for event_type in self.config.policies.keys() {
                if !catalogue.iter().any(|known| known.event_type() == *event_type) {
                    tracing::warn!(%event_type, "a policy is set for an event type that is not linked into this program");
                }
            }
        }
        Ok(())
    }

    async fn preflight(&self) -> Result<Unchecked, RelayError> {
        let store = self.check_store().await?;
        if let Some(reason) = &store {
            tracing::warn!(%reason, "the database cannot be checked now; relay waits until it answers");
        }
        let broker = match self.check_broker().await {
            Ok(()) => false,
            Err(error) if error.class() == FailureClass::Configuration => {
                return Err(RelayError::Broker(describe(&error)));
            }
            Err(error) => {
                tracing::warn!(reason = %describe(&error), "the stream cannot be checked now; relay checks again later");
                true
            }
        };
        Ok(Unchecked {
            store: store.is_some(),
            broker,
        })
    }

    async fn check_broker(&self) -> Result<(), PublishError> {
        let checked = tokio::time::timeout(self.config.store_timeout, self.publisher.preflight()).await;
        let warnings =
            checked.unwrap_or_else(|_| Err(PublishError::new(FailureClass::Unknown, "no answer in time")))?;
        for warning in warnings {
            tracing::warn!(%warning, "stream");
        }
        Ok(())
    }

    async fn check_store(&self) -> Result<Option<String>, RelayError> {
        let bound = self.config.store_timeout;
        let checked = self.store.preflight(self.config.retention.deletes());
        match within(bound, "the database could not be checked", checked).await {
            Ok(warnings) => {
                let is_news = |warning: &&SetupProblem| {
                    self.part.mode() == RelayMode::Polling || warning.kind != SetupKind::LeftToLog
                };
                for warning in warnings.iter().filter(is_news) {
                    tracing::warn!(%warning, "outbox database");
                }
                Ok(None)
            }
            Err(error @ StoreError::Setup(_)) => Err(error.into()),
            Err(error) => Ok(Some(describe(&error))),
        }
    }

    /// Setup problems of the database stop the relay. Stream problems are logged once, because a
    /// broker that has just started may not have loaded its streams.
    async fn check_later(
        &self,
        mut unchecked: Unchecked,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        let seed = self.config.seed;
        let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let (mut failures, mut is_logged) = (0_u32, false);
        while unchecked.store || unchecked.broker {
            failures = failures.saturating_add(1);
            let pause = self.config.backoff.delay(failures, &mut rng);
            let check = async {
                tokio::time::sleep(pause).await;
                if unchecked.store {
                    unchecked.store = self.check_store().await?.is_some();
                }
                if unchecked.broker {
                    let checked = self.check_broker().await;
                    unchecked.broker = checked.is_err();
                    if let Err(error) = checked
                        && error.class() == FailureClass::Configuration
                        && !std::mem::replace(&mut is_logged, true)
                    {
                        let reason = describe(&error);
                        tracing::error!(%reason, "the stream is not set up; relay checks again until it is");
                    }
                }
                Ok::<(), RelayError>(())
            };
            match stop.run_until_cancelled(check).await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    stop.cancel();
                    return Err(error);
                }
                None => break,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Unchecked {
    store: bool,
    broker: bool,
}

impl RelayReport {
    /// Adds both counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            published: self.published + other.published,
            duplicates: self.duplicates + other.duplicates,
            failed: self.failed + other.failed,
            dead_letters: self.dead_letters + other.dead_letters,
        }
    }
}

//! The log relay: a relay of the table and a relay of the log, which share a publisher.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::reading::Shared;
use super::undecided::{FETCH_MAX, Undecided};
use super::{LogConfig, LogStatus, MessageLog};
use crate::health::{Health, HealthCheck};
use crate::publisher::Publisher;
use crate::relay::{
    DeadMessage, LogFitness, Relay, RelayConfig, RelayError, RelayReport, Retention, health_check,
};
use crate::shutdown::CancellationToken;
use crate::store::{OutboxStore, StoreError};

/// Publishes the messages of an outbox from the database's log, and from its table what the log cannot be used for. See [`crate::log`].
///
/// Any number of log relays may run, and polling relays beside them: these work on the table.
pub struct LogRelay<S, L: MessageLog, P> {
    table: Relay<S, Arc<P>>,
    publisher: Arc<P>,
    log: Arc<L>,
    /// The health of the relay of the log.
    health: HealthCheck,
    shared: Arc<Shared>,
    /// What the relay of the log tells the relay of the table.
    fitness: LogFitness,
    log_config: LogConfig,
    config: RelayConfig,
    wall_clock: Option<Arc<dyn Fn() -> time::Duration + Send + Sync>>,
}

impl<S: OutboxStore, L: MessageLog, P: Publisher> LogRelay<S, L, P> {
    /// A log relay with the default configuration. `store` is the table's, as for a polling relay.
    pub fn new(store: S, log: L, publisher: P) -> Self {
        let publisher = Arc::new(publisher);
        let (config, fitness) = (RelayConfig::default(), LogFitness::default());
        Self {
            health: health_check(&config),
            table: Relay::new(store, publisher.clone()).beside_log(fitness.clone()),
            fitness,
            publisher,
            log: Arc::new(log),
            shared: Arc::new(Shared::new(LogConfig::default())),
            log_config: LogConfig::default(),
            config,
            wall_clock: None,
        }
    }

    /// Replaces the configuration, which holds for both parts.
    ///
    /// With [`Retention::Delete`], messages that were published from the log are kept for an hour, because deleting them at once would be a write for each.
    #[must_use]
    pub fn with_config(mut self, config: RelayConfig) -> Self {
        self.health = health_check(&config);
        self.table = self.table.with_config(config.clone());
        self.config = config;
        self
    }

    /// Replaces the configuration of the log.
    #[must_use]
    pub fn with_log_config(mut self, config: LogConfig) -> Self {
        self.shared = Arc::new(Shared::new(config.clone()));
        self.log_config = config;
        self
    }

    /// As [`Relay::on_dead_letter`].
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(&DeadMessage) + Send + Sync + 'static) -> Self {
        self.table = self.table.on_dead_letter(hook);
        self
    }

    /// As [`Relay::with_wall_clock`]. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wall_clock(mut self, lead: impl Fn() -> time::Duration + Send + Sync + 'static) -> Self {
        let lead = Arc::new(lead);
        self.wall_clock = Some(lead.clone());
        self.table = self.table.with_wall_clock(move || lead());
        self
    }

    /// Tells how the relay is doing while it runs.
    #[must_use]
    pub fn health(&self) -> LogHealthCheck {
        LogHealthCheck {
            table: self.table.health(),
            log: self.health.clone(),
            shared: self.shared.clone(),
        }
    }

    /// As [`Relay::run`]. Dropping the future is like a crash.
    ///
    /// # Errors
    ///
    /// As [`Relay::run`]; also if the database does not give its log, or [`LogConfig`] cannot work.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<RelayReport, RelayError> {
        self.log_config.check()?;
        let relay = self.of_log(true);
        // If one part cannot go on until somebody acts, the other does not hide it.
        let stop = shutdown.child_token();
        let table = async {
            let ended = self.table.run(stop.clone()).await;
            stop.cancel();
            ended
        };
        let log = async {
            let ended = relay.run(stop.clone()).await;
            stop.cancel();
            ended
        };
        let (table, log) = tokio::join!(table, log);
        Ok(table?.and(log?))
    }

    /// As [`Relay::drain`]: publishes everything that is due now. While another relay reads the log, only what is pending in the table.
    ///
    /// # Errors
    ///
    /// As [`Relay::drain`].
    pub async fn drain(&self) -> Result<RelayReport, RelayError> {
        self.log_config.check()?;
        // What is pending comes first; then the log; then what the table has adopted.
        let first = self.table.drain().await;
        if has_ended_early(&first) {
            return first;
        }
        let log = self.of_log(false).drain().await;
        if has_ended_early(&log) {
            return first.and(log);
        }
        let rest = self.table.drain().await;
        Ok(first?.and(log?).and(rest?))
    }

    fn of_log(&self, follows: bool) -> Relay<Undecided<L>, Arc<P>> {
        let outbox = Undecided::new(
            self.log.clone(),
            self.shared.clone(),
            self.fitness.clone(),
            follows,
        );
        let mut config = self.config.clone();
        if config.retention == Retention::Delete {
            config.retention = Retention::KeepFor(Duration::from_secs(3600));
        }
        // A fetch waits for news, besides what it asks of the database.
        config.store_timeout = (config.store_timeout + FETCH_MAX).min(Duration::from_secs(60));
        let (publisher, health) = (self.publisher.clone(), self.health.clone());
        let relay = Relay::of_log(outbox, publisher, config, health, self.shared.breaks.clone());
        if let Some(lead) = self.wall_clock.clone() {
            return relay.with_wall_clock(move || lead());
        }
        relay
    }
}

/// Whether a drain has failed before everything was out. A verdict that the store refuses for its own sake does not end one, though it is an error.
fn has_ended_early(drained: &Result<RelayReport, RelayError>) -> bool {
    !matches!(
        drained,
        Ok(_) | Err(RelayError::Store(StoreError::Refused { .. }))
    )
}

impl<S, L: MessageLog, P> fmt::Debug for LogRelay<S, L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogRelay")
            .field("config", &self.config)
            .field("log_config", &self.log_config)
            .field("status", &self.shared.status())
            .finish_non_exhaustive()
    }
}

/// Reads the health of a log relay that runs elsewhere in the process. All clones read the same relay.
#[derive(Debug, Clone)]
pub struct LogHealthCheck {
    table: HealthCheck,
    log: HealthCheck,
    shared: Arc<Shared>,
}

impl LogHealthCheck {
    /// The relay's health now, of both parts together. Standing by is healthy.
    #[must_use]
    pub fn now(&self) -> Health {
        let status = self.status();
        let mut reasons = Vec::new();
        if status.adopts {
            let bytes = status.retained.unwrap_or_default().bytes;
            reasons.push(format!(
                "it keeps {bytes} bytes of the database's disk; messages are published from the table until it keeps less"
            ));
        }
        if status.waits_for_table {
            reasons.push("it waits until the table holds fewer pending messages".to_owned());
        }
        let of_disk = match reasons.is_empty() {
            true => Health::Alive,
            false => Health::Degraded { reasons },
        };
        let parts = [
            ("table", self.table.now()),
            ("log", self.log.now()),
            ("log", of_disk),
        ];
        Health::together(parts)
    }

    /// How the log stands.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        self.shared.status()
    }
}

impl LogConfig {
    fn check(&self) -> Result<(), RelayError> {
        let every = self.checkpoint_every.as_millis();
        if !(10..=60_000).contains(&every) {
            return Err(RelayError::Config(format!(
                "checkpoint_every is {:?}; use 10 ms to 60 s",
                self.checkpoint_every
            )));
        }
        if self.window == 0 || self.window_bytes == 0 {
            return Err(RelayError::Config(
                "window or window_bytes of the log is 0; use at least 1".to_owned(),
            ));
        }
        Ok(())
    }
}

//! The log relay: publishes messages from the transaction log of the database.
//!
//! [`LogRelay`] runs two relays with one publisher, joined by a [`SecondSource`]. The table relay
//! works as a polling relay. The relay of the log publishes messages of a [`MessageLog`]; if the
//! first attempt fails, the table relay publishes the message.
//!
//! # Ownership of a message
//!
//! A new message is *logged*, and belongs to the log until it is decided. A message is *decided*
//! when the broker has confirmed it, or when the table has *adopted* it. An adopted message is
//! pending: the table relay publishes, blocks, retries or dead-letters it.
//!
//! * The table adopts (makes pending) delayed messages, and messages whose aggregate is blocked or
//!   has pending messages.
//! * The table adopts failed messages.
//! * While the log retains more disk than [`LogConfig::retained_max`], the table adopts every read
//!   message.
//!
//! # Guarantees
//!
//! * **No loss.** The log's position moves past a commit only when each of its messages is
//!   published or pending. A lost log is recreated, and each message that it may not have returned
//!   becomes pending ([`MessageLog::open`]).
//! * **Order.** The log has commit order, and so the order of each aggregate. Pending messages of
//!   an aggregate precede its messages in the log. If a message becomes pending, so do all earlier
//!   unpublished messages of its aggregate. Not guaranteed: the order of a retried dead letter that
//!   did not halt its aggregate.
//! * **No write per published message.** The relay stores the log's position once a second.
//! * **After a crash** the relay publishes the messages after the stored position again, with the
//!   same ids.
//! * **One reader.** The database allows one reader of the log at a time. A standby relay takes
//!   over when the reader ends. A replaced reader publishes at most copies in the same order, and
//!   makes a message pending only if its status is still *logged*.
//! * **A reader that cannot publish** for one lease time leaves the log for five seconds to standby
//!   relays. If no relay takes the log, the reader resumes. The interval between such offers grows
//!   to ten minutes.

mod backlog;
mod config;
mod health;
mod offer;
mod opener;
mod reading;
mod shared;
mod window;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::health::HealthCheck;
use outbox_core::log::MessageLog;
use outbox_core::log::source::SecondSource;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{
    DeadMessage, OutboxStore, Publisher, Relay, RelayConfig, RelayError, RelayReport, Retention, StoreError,
};

use backlog::{FETCH_MAX, Undecided};
use shared::Shared;

use crate::telemetry;

pub use config::LogConfig;
pub use health::{LogHealthCheck, LogStatus};

/// Publishes the messages of an outbox from the database's log, and pending messages from its
/// table. The module [`relay`](crate::relay) lists the guarantees. Any number of log relays and
/// polling relays may run.
pub struct LogRelay<S, L: MessageLog, P> {
    table: Relay<S, Arc<P>>,
    publisher: Arc<P>,
    log: Arc<L>,
    health: HealthCheck,
    shared: Arc<Shared>,
    source: SecondSource,
    log_config: LogConfig,
    config: RelayConfig,
    wall_clock: Option<Arc<dyn Fn() -> time::Duration + Send + Sync>>,
}

impl<S: OutboxStore, L: MessageLog, P: Publisher> LogRelay<S, L, P> {
    /// Creates a log relay with the default configuration. `store` is the store of a polling relay.
    pub fn new(store: S, log: L, publisher: P) -> Self {
        let publisher = Arc::new(publisher);
        let (config, source) = (RelayConfig::default(), SecondSource::default());
        Self {
            health: HealthCheck::of(&config),
            table: Relay::new(store, publisher.clone()).with_source(source.clone()),
            source,
            publisher,
            log: Arc::new(log),
            shared: Arc::new(Shared::new(LogConfig::default())),
            log_config: LogConfig::default(),
            config,
            wall_clock: None,
        }
    }

    /// Replaces the configuration of the table relay and the relay of the log.
    ///
    /// With [`Retention::Delete`], messages published from the log are kept for an hour: deleting
    /// each message would be a write per message.
    #[must_use]
    pub fn with_config(mut self, config: RelayConfig) -> Self {
        self.health = HealthCheck::of(&config);
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

    /// Sets a hook for dead letters, as [`Relay::on_dead_letter`].
    #[must_use]
    pub fn on_dead_letter(mut self, hook: impl Fn(&DeadMessage) + Send + Sync + 'static) -> Self {
        self.table = self.table.on_dead_letter(hook);
        self
    }

    /// Sets the clock, as [`Relay::with_wall_clock`]. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wall_clock(mut self, lead: impl Fn() -> time::Duration + Send + Sync + 'static) -> Self {
        let lead = Arc::new(lead);
        self.wall_clock = Some(lead.clone());
        self.table = self.table.with_wall_clock(move || lead());
        self
    }

    /// The health of the relay while it runs.
    #[must_use]
    pub fn health(&self) -> LogHealthCheck {
        LogHealthCheck {
            table: self.table.health(),
            log: self.health.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Runs the table relay and the relay of the log, as [`Relay::run`]. Dropping the future is
    /// like a crash.
    ///
    /// # Errors
    ///
    /// The same errors as [`Relay::run`], and an error if the log is not set up, or the
    /// [`LogConfig`] is invalid.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<RelayReport, RelayError> {
        self.log_config.check()?;
        telemetry::describe();
        let relay = self.relay(true);
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

    /// Drains the outbox, as [`Relay::drain`]. While another relay reads the log, only pending
    /// messages of the table are published.
    ///
    /// # Errors
    ///
    /// The same errors as [`Relay::drain`].
    pub async fn drain(&self) -> Result<RelayReport, RelayError> {
        self.log_config.check()?;
        telemetry::describe();
        let first = self.table.drain().await;
        if has_ended_early(&first) {
            return first;
        }
        let log = self.relay(false).drain().await;
        if has_ended_early(&log) {
            return first.and(log);
        }
        let rest = self.table.drain().await;
        Ok(first?.and(log?).and(rest?))
    }

    fn relay(&self, follows: bool) -> Relay<Undecided<L>, Arc<P>> {
        let source = self.source.clone();
        let outbox = Undecided::new(self.log.clone(), self.shared.clone(), source.clone(), follows);
        let mut config = self.config.clone();
        if config.retention == Retention::Delete {
            config.retention = Retention::KeepFor(Duration::from_secs(3600));
        }
        config.store_timeout = (config.store_timeout + FETCH_MAX).min(Duration::from_secs(60));
        let relay = Relay::new(outbox, self.publisher.clone())
            .with_config(config)
            .as_source(source, self.health.clone());
        if let Some(lead) = self.wall_clock.clone() {
            return relay.with_wall_clock(move || lead());
        }
        relay
    }
}

/// If the store rejects a settlement, a drain returns this error only after its other work is done.
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

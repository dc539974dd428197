//! Runs the relays and inboxes of a process together until a shutdown.
//!
//! Invariants: each relay and inbox runs in its own task. When a task fails, panics or is
//! cancelled, the other tasks shut down as on a signal, and the run returns the first failure.

use std::future::Future;
use std::pin::Pin;

use outbox_core::shutdown::{self, CancellationToken};
use outbox_core::{OutboxStore, Publisher, Relay, RelayError, RelayReport, Subscriber};
use outbox_inbox::{Inbox, InboxError, InboxReport};
use tokio::task::{JoinError, JoinSet};

use crate::health::RunnerHealth;

type Running = Pin<Box<dyn Future<Output = Result<Report, RunError>> + Send>>;

/// A process's relays and inboxes, started and stopped together.
///
/// ```no_run
/// # use outbox::prelude::*;
/// # use outbox::core::{OutboxStore, Publisher, Subscriber};
/// # async fn run(
/// #     relay: Relay<impl OutboxStore, impl Publisher>,
/// #     inbox: Inbox<impl Subscriber>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// Runner::new().with_relay(relay).with_inbox(inbox).run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct Runner {
    health: RunnerHealth,
    parts: Vec<Box<dyn FnOnce(CancellationToken) -> Running + Send>>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("parts", &self.parts.len())
            .finish()
    }
}

/// Reports of a completed run, in order of addition.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RunReport {
    /// One report per relay and log relay.
    pub relays: Vec<RelayReport>,
    /// One report per inbox.
    pub inboxes: Vec<InboxReport>,
}

/// Why a [`Runner`] ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A relay could not start.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// An inbox could not start, or a consumer panicked.
    #[error(transparent)]
    Inbox(#[from] InboxError),
    /// The runner has neither a relay nor an inbox.
    #[error("there is nothing to run; add a relay with `with_relay`, or an inbox with `with_inbox`")]
    Empty,
    /// A relay or inbox panicked. The panic message is on standard error.
    #[error("a relay or an inbox panicked; the panic message is on standard error")]
    Panicked,
    /// The Tokio runtime shut down first and cancelled a relay or inbox. The effect is like a
    /// crash: nothing is lost, but leases must expire, and messages in flight are redelivered.
    #[error(
        "the runtime ended before its relays and inboxes; wait for `Runner::run` before the runtime is dropped"
    )]
    Cancelled,
}

enum Report {
    Relay(RelayReport),
    Inbox(InboxReport),
}

impl Runner {
    /// Creates an empty runner.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a relay.
    pub fn with_relay<S: OutboxStore, P: Publisher>(mut self, relay: Relay<S, P>) -> Self {
        self.health.relays.push(relay.health());
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Relay(relay.run(shutdown).await?)) })
        }));
        self
    }

    /// Adds a log relay.
    #[cfg(feature = "log")]
    pub fn with_log_relay<S: OutboxStore, L: outbox_core::log::MessageLog, P: Publisher>(
        mut self,
        relay: outbox_log::LogRelay<S, L, P>,
    ) -> Self {
        self.health.log_relays.push(relay.health());
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Relay(relay.run(shutdown).await?)) })
        }));
        self
    }

    /// Adds an inbox.
    pub fn with_inbox<S: Subscriber>(mut self, inbox: Inbox<S>) -> Self {
        self.health.inboxes.push(inbox.health());
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Inbox(inbox.run(shutdown).await?)) })
        }));
        self
    }

    /// Health of the relays and inboxes added so far. Call this before [`Self::run`], and read the
    /// health during the run, for example in probes as in [`Inbox::health`].
    #[must_use]
    pub fn health(&self) -> RunnerHealth {
        self.health.clone()
    }

    /// Runs until Ctrl-C or, on Unix, SIGTERM. After the signal, every relay and inbox finishes its
    /// messages in flight, each within its own `shutdown_timeout`. Unfinished relays and inboxes
    /// are logged. A second signal ends the wait: running work is rolled back and released
    /// ([`shutdown::hurry`](outbox_core::shutdown::hurry)). Call this once per program: afterwards
    /// these signals no longer end the process.
    ///
    /// # Errors
    ///
    /// The first failure of a relay or inbox, or [`RunError::Empty`]. After a failure the other
    /// relays and inboxes shut down. Their reports are lost, their failures logged.
    ///
    /// # Cancellation
    ///
    /// Dropping the future is like a crash: nothing is lost, but leases must expire, and messages
    /// in flight are redelivered.
    pub async fn run(self) -> Result<RunReport, RunError> {
        self.run_until(shutdown::on_signals()).await
    }

    /// Runs as [`Self::run`], but until `shutdown` is cancelled. If the run ends for another
    /// reason, it cancels `shutdown`, so that a concurrent server ends too:
    ///
    /// ```no_run
    /// # async fn run(
    /// #     runner: outbox::Runner,
    /// #     server: impl Future<Output = std::io::Result<()>>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let shutdown = outbox::core::shutdown::on_signals();
    /// // `axum::serve(…).with_graceful_shutdown(shutdown.clone().cancelled_owned())`
    /// let (served, ended) = tokio::join!(server, runner.run_until(shutdown));
    /// served?;
    /// ended?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    ///
    /// # Cancellation
    ///
    /// As [`Self::run`].
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<RunReport, RunError> {
        // The guard cancels `shutdown` even if this future is dropped.
        let _ends = shutdown.clone().drop_guard();
        if self.parts.is_empty() {
            return Err(RunError::Empty);
        }
        let mut running = JoinSet::new();
        for (index, part) in self.parts.into_iter().enumerate() {
            let run = part(shutdown.clone());
            running.spawn(async move { (index, run.await) });
        }
        let (mut reports, mut failure) = (Vec::new(), None);
        while let Some(ended) = running.join_next().await {
            let error = match ended {
                Ok((index, Ok(report))) => {
                    reports.push((index, report));
                    continue;
                }
                Ok((_, Err(error))) => error,
                Err(error) => RunError::of_task(&error),
            };
            shutdown.cancel();
            match failure {
                None => failure = Some(error),
                Some(_) => tracing::error!(error = %outbox_core::describe(&error), "failed as well"),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(RunReport::of(reports)),
        }
    }
}

impl RunError {
    fn of_task(error: &JoinError) -> Self {
        if error.is_cancelled() {
            Self::Cancelled
        } else {
            Self::Panicked
        }
    }
}

impl RunReport {
    fn of(mut reports: Vec<(usize, Report)>) -> Self {
        reports.sort_by_key(|(index, _)| *index);
        let mut all = Self::default();
        for (_, report) in reports {
            match report {
                Report::Relay(relay) => all.relays.push(relay),
                Report::Inbox(inbox) => all.inboxes.push(inbox),
            }
        }
        all
    }
}

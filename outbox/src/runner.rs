//! Runs the relays and inboxes of a process together, until it is asked to stop.
//!
//! Invariants: each runs in a task of its own, so that none waits for the work of another; when one of them fails, panics or is cancelled, the others are stopped as by
//! a signal, and the first failure is the result. Not here: how each of them is doing, see [`RunnerHealth`].

use std::future::Future;
use std::pin::Pin;

use outbox_core::shutdown::{self, CancellationToken};
use outbox_core::{OutboxStore, Publisher, Relay, RelayError, RelayReport, Subscriber};
use outbox_inbox::{Inbox, InboxError, InboxReport};
use tokio::task::{JoinError, JoinSet};

use crate::health::RunnerHealth;

type Running = Pin<Box<dyn Future<Output = Result<Report, RunError>> + Send>>;

/// Relays and inboxes of a process, which start and stop together.
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

/// What relays and inboxes did, in the order in which they were added.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RunReport {
    /// Of [`Runner::with_relay`].
    pub relays: Vec<RelayReport>,
    /// Of [`Runner::with_inbox`].
    pub inboxes: Vec<InboxReport>,
}

/// Why relays and inboxes ended before they were asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A relay could not start.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// An inbox could not start, or one of its consumers panicked.
    #[error(transparent)]
    Inbox(#[from] InboxError),
    /// There was nothing to run.
    #[error("there is nothing to run; add a relay with `with_relay`, or an inbox with `with_inbox`")]
    Empty,
    /// A relay or an inbox panicked: in code of the application that it calls, or by a mistake of ours. The panic's text is in the standard error.
    #[error("a relay or an inbox panicked; its text stands in the standard error")]
    Panicked,
    /// The Tokio runtime cancelled the task of a relay or an inbox, because it shut down first. That is like a crash: nothing is lost, but leases must run out, and messages
    /// in flight come again.
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
    /// Without anything to run.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a relay. May be called several times.
    pub fn with_relay<S: OutboxStore, P: Publisher>(mut self, relay: Relay<S, P>) -> Self {
        self.health.relays.push(relay.health());
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Relay(relay.run(shutdown).await?)) })
        }));
        self
    }

    /// Adds an inbox. May be called several times.
    pub fn with_inbox<S: Subscriber>(mut self, inbox: Inbox<S>) -> Self {
        self.health.inboxes.push(inbox.health());
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Inbox(inbox.run(shutdown).await?)) })
        }));
        self
    }

    /// Tells how the relays and inboxes are doing while they run, those that were added so far. Call it before [`Self::run`]; the answer can be asked from anywhere, for
    /// example by the probes of a web server as in [`Inbox::health`].
    #[must_use]
    pub fn health(&self) -> RunnerHealth {
        self.health.clone()
    }

    /// Runs until Ctrl-C or, on Unix, SIGTERM. Then all finish what is in flight, each within its own `shutdown_timeout`. Call it once in a program: the process no
    /// longer ends by these signals afterwards.
    ///
    /// # Errors
    ///
    /// The first failure of a relay or an inbox, or [`RunError::Empty`]. The others are stopped then. Their reports are lost, and their own failures are logged.
    ///
    /// # Cancellation
    ///
    /// Dropping the future is like a crash: nothing is lost, but leases must run out, and what was in flight comes again.
    pub async fn run(self) -> Result<RunReport, RunError> {
        self.run_until(shutdown::on_signals()).await
    }

    /// [`Self::run`] until `shutdown` is cancelled. At its end it cancels `shutdown` itself, so that a server beside it ends too:
    ///
    /// ```no_run
    /// # async fn run(runner: outbox::Runner, server: impl Future<Output = std::io::Result<()>>) -> Result<(), Box<dyn std::error::Error>> {
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
        // Also if this is dropped.
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
                Some(_) => tracing::error!(error = &error as &dyn std::error::Error, "failed as well"),
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

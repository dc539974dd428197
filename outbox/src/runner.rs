//! Runs the relays and inboxes of a process together, until it is asked to stop.
//!
//! Invariant: when one of them ends with an error, the others are stopped as by a signal, and the first error is the result.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use outbox_core::shutdown::{self, CancellationToken};
use outbox_core::{OutboxStore, Publisher, Relay, RelayError, RelayReport, Subscriber};
use outbox_inbox::{Inbox, InboxError, InboxReport};

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
    #[error("relay ended")]
    Relay(#[from] RelayError),
    /// An inbox could not start, or one of its consumers panicked.
    #[error("inbox ended")]
    Inbox(#[from] InboxError),
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

    /// Adds a relay. Ask [`Relay::health`] before.
    pub fn with_relay<S: OutboxStore, P: Publisher>(mut self, relay: Relay<S, P>) -> Self {
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Relay(relay.run(shutdown).await?)) })
        }));
        self
    }

    /// Adds an inbox.
    pub fn with_inbox<S: Subscriber>(mut self, inbox: Inbox<S>) -> Self {
        self.parts.push(Box::new(|shutdown| {
            Box::pin(async move { Ok(Report::Inbox(inbox.run(shutdown).await?)) })
        }));
        self
    }

    /// Runs until Ctrl-C or, on Unix, SIGTERM. Then all finish what is in flight, each within its own `shutdown_timeout`.
    ///
    /// A program with a server beside them uses [`Self::run_until`] with a token for both.
    ///
    /// # Errors
    ///
    /// The first error of a relay or an inbox. The others are stopped then, and their own errors are logged.
    ///
    /// # Cancellation
    ///
    /// Dropping the future is like a crash: nothing is lost, but leases must run out, and what was in flight comes again.
    pub async fn run(self) -> Result<RunReport, RunError> {
        self.run_until(shutdown::on_signals()).await
    }

    /// [`Self::run`] until `shutdown` is cancelled. An error does not cancel it.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    ///
    /// # Cancellation
    ///
    /// As [`Self::run`].
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<RunReport, RunError> {
        let (shutdown, failure) = (shutdown.child_token(), Mutex::new(None));
        let fail = |error: RunError| {
            shutdown.cancel();
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if failure.is_none() {
                *failure = Some(error);
            } else {
                tracing::error!(error = &error as &dyn std::error::Error, "failed as well");
            }
        };
        let parts = self
            .parts
            .into_iter()
            .map(|part| async { part(shutdown.clone()).await.map_err(fail).ok() });
        let mut report = RunReport::default();
        for ended in join_all(parts).await.into_iter().flatten() {
            match ended {
                Report::Relay(relay) => report.relays.push(relay),
                Report::Inbox(inbox) => report.inboxes.push(inbox),
            }
        }
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }
}

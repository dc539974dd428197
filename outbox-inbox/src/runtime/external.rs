//! Strategy *external*: the handler runs under a claim in a store outside the database.
//!
//! Invariant: the store is told of an effect after it has happened, for as long as the claim lasts. A crash between the effect and its record lets it happen
//! again. Not here: the store ([`outbox_core::DedupStore`]).

use std::time::Duration;

use outbox_core::{DedupKey, DedupStoreError, StoreClaim};
use tokio::time::Instant;

use super::attempt::TROUBLE;
use super::consumer::{Consumer, Stop};
use super::ready::Ready;
use super::routed::RoutedMessage;
use super::run::{RunOutcome, runs_in_transaction};
use crate::handler::describe;

/// Added to the handler's timeout for the time that its transaction takes beside it.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

impl Consumer {
    /// Asks the store whether a message may run now, and leaves no trace. `None`: it may.
    pub(super) async fn ask_store(&self, ready: &Ready<'_>) -> Option<RunOutcome> {
        let store = self.shared.store.as_ref()?;
        let key = DedupKey::new(self.name, ready.claimant.message.event_id);
        let lease = self.timeout(Some(ready.handler)) + LEASE_MARGIN;
        let answer = match store.claim(&key, lease).await {
            // Counting may take longer than the lease has to spare, so the run claims anew. A crash before the release, or one that is lost: the next
            // claim waits for the end of the lease.
            Ok(StoreClaim::Mine(token)) => store.release(&key, token).await.map(|()| None),
            Ok(StoreClaim::Done) => Ok(Some(RunOutcome::Duplicate)),
            Ok(StoreClaim::InProgress) => Ok(Some(RunOutcome::runs_elsewhere(lease / 4))),
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| Some(RunOutcome::NotStarted(describe(&error))))
    }

    /// Runs the handler under a claim in a store outside the database.
    pub(super) async fn run_externally(
        &self,
        routed: &RoutedMessage,
        ready: &Ready<'_>,
        stop: &Stop,
    ) -> RunOutcome {
        let Some(store) = &self.shared.store else {
            // Checked at the start.
            return RunOutcome::NotStarted("there is no deduplication store".to_owned());
        };
        let event_id = ready.claimant.message.event_id;
        let key = DedupKey::new(self.name, event_id);
        let lease = self.timeout(Some(ready.handler)) + LEASE_MARGIN;
        let claimed = Instant::now();
        // A crash from here to the completion: the claim ends with its lease, and the effect may happen again.
        let token = match store.claim(&key, lease).await {
            Ok(StoreClaim::Mine(token)) => token,
            Ok(StoreClaim::Done) => return RunOutcome::Duplicate,
            Ok(StoreClaim::InProgress) => return RunOutcome::runs_elsewhere(lease / 4),
            Err(error) => return RunOutcome::NotStarted(describe(&error)),
        };
        let outcome = if runs_in_transaction(routed, ready.handler) {
            self.run_in_transaction(routed, ready, stop).await
        } else {
            self.run_without_transaction(routed, ready, stop).await
        };
        let closed = match outcome {
            RunOutcome::Handled { .. } | RunOutcome::Duplicate => {
                let complete = || store.complete(&key, token, self.shared.config.retention);
                until_completed(complete, claimed + lease, stop).await
            }
            _ => store.release(&key, token).await.map(|()| true),
        };
        match closed {
            Ok(true) => {}
            Ok(false) => tracing::error!(
                consumer = self.name,
                %event_id,
                "the handler outlived its claim in the deduplication store; the message may have taken effect twice"
            ),
            Err(error) => tracing::warn!(
                consumer = self.name,
                %event_id,
                error = %describe(&error),
                "the deduplication store was not told; the message may take effect again"
            ),
        }
        outcome
    }
}

/// Tells the store, again and again while the lease lasts: the effect has happened, and completing may be repeated.
async fn until_completed<F>(
    mut complete: impl FnMut() -> F,
    end: Instant,
    stop: &Stop,
) -> Result<bool, DedupStoreError>
where
    F: Future<Output = Result<bool, DedupStoreError>>,
{
    let mut tries = 0;
    loop {
        let error = match complete().await {
            Err(error @ DedupStoreError::Unavailable { .. }) => error,
            closed => return closed,
        };
        tries += 1;
        let delay = TROUBLE.delay(tries, &mut fastrand::Rng::new());
        if Instant::now() + delay >= end {
            return Err(error);
        }
        tracing::debug!(%error, "the deduplication store is told again");
        let sleep = tokio::time::sleep(delay);
        if stop.hard.run_until_cancelled(sleep).await.is_none() {
            return Err(error);
        }
    }
}

//! What happens to a message that failed: it is written down, and tried again or dead-lettered.
//!
//! Invariants: a failure is recorded after the rollback and outside of it; what the database prevents uses no attempt; whoever wants to know is told after the
//! commit. Not here: counting ([`crate::dedup::attempts`]).

use std::time::Duration;

use outbox_core::Message;
use outbox_core::store::storable_error;

use super::attempt::Attempt;
use super::consumer::Consumer;
use super::routed::{Handling, RoutedMessage};
use crate::dead_letter::{NewDeadLetter, retry};
use crate::dedup::attempts::{Count, Failure};
use crate::dedup::claim::Claimant;
use crate::hook::DeadDelivery;

/// Longest wait for the database to take back attempts that did not happen, of all messages together.
pub(super) const CORRECTIONS_MAX: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Records a failure, after the rollback and outside of it, and decides whether the message comes again.
    pub(super) async fn failed(
        &mut self,
        claimant: Option<&Claimant<'_>>,
        count: Count,
        fatal: bool,
        error: &str,
    ) -> Handling {
        if let Some(letter) = self.routed.letter.clone() {
            return self.letter_failed(&letter, error).await;
        }
        let consumer = self.consumer;
        let error = storable_error(error);
        let letter = NewDeadLetter {
            consumer: consumer.name,
            message: Some(self.message),
            incoming: self.incoming,
            error: &error,
            attempts: 0,
        };
        let attempts = self.attempts();
        let fail = || attempts.fail(count, fatal, &letter, claimant);
        let failure = match self.until_done(fail).await {
            Ok(failure) => failure,
            Err(handling) => return handling,
        };
        self.routed.memory.counted = None;
        self.routed.memory.count_first = true;
        let handler = self.routed.handler();
        let (event_id, event_type) = (self.message.event_id, &self.message.event_type);
        match failure {
            Failure::Retry { attempts } => {
                let backoff = handler.and_then(|handler| handler.options.backoff);
                let backoff = backoff.unwrap_or(consumer.shared.config.backoff);
                let retry_after = backoff.delay(attempts, &mut fastrand::Rng::new());
                tracing::warn!(consumer = consumer.name, %event_id, %event_type, attempts, ?retry_after, %error, "handler failed");
                Handling::Failed { retry_after }
            }
            Failure::Buried { attempts } => {
                tracing::error!(consumer = consumer.name, %event_id, %event_type, attempts, %error, "kept as a dead letter");
                let letter = NewDeadLetter { attempts, ..letter };
                consumer.tell_dead_letter(&letter).await;
                Handling::DeadLettered
            }
            Failure::Done if handler.is_some() => self.duplicate(claimant).await,
            Failure::Done => Handling::Duplicate,
        }
    }

    /// The handler asked for another run after `wait`, which is no failure: what was counted for this run is taken back. A crash before that: the attempt stays
    /// counted.
    pub(super) async fn deferred(
        &mut self,
        claimant: Option<&Claimant<'_>>,
        wait: Duration,
        error: &str,
    ) -> Handling {
        let (consumer, message) = (self.consumer, self.message);
        // A dead letter is counted as long as it is being tried, and nothing waits for it.
        if self.routed.letter.is_none() {
            let pool = consumer.shared.database.pool();
            if let Some(claimant) = claimant
                && let Err(handling) = self.until_done(|| claimant.note_failing(pool)).await
            {
                return handling;
            }
            if self.routed.memory.counted.is_some() {
                let attempts = self.attempts();
                match self.until_done(|| attempts.take_back()).await {
                    Ok(()) => self.routed.memory.counted = None,
                    Err(Handling::Returned) => return Handling::Returned,
                    // The handler asked for a wait, so it is not run sooner. The next run is the attempt that is counted already.
                    Err(_) => {}
                }
            }
        }
        let (event_id, event_type) = (message.event_id, &message.event_type);
        tracing::info!(consumer = consumer.name, %event_id, %event_type, ?wait, error, "handler asked to be run again later");
        Handling::Deferred { retry_after: wait }
    }

    /// Keeps a message that no handler takes as a dead letter, when its turn has come.
    pub(super) async fn dead_letter(&mut self, error: &str) -> Handling {
        if let Some(handling) = self.wait_for_turn().await {
            return handling;
        }
        let keeper = self.keeper_of_sequence();
        self.failed(keeper.as_ref(), Count::Nothing, true, error).await
    }

    /// Records a panic of the runtime, or of what it called.
    pub(super) async fn panicked(mut self, error: &str) -> Handling {
        let keeper = self.keeper_of_sequence();
        let count = self.routed.memory.counted.map_or(Count::Add, Count::Counted);
        self.failed(keeper.as_ref(), count, false, error).await
    }
}

impl Consumer {
    /// Tells whoever wants to know of a dead letter. Its record is committed.
    pub(super) async fn tell_dead_letter(&self, letter: &NewDeadLetter<'_>) {
        let Ok(id) = letter.id() else { return };
        let dead = DeadDelivery {
            consumer: self.name,
            incoming: letter.incoming,
            message: letter.message,
            error: letter.error,
            attempts: letter.attempts,
        };
        self.shared.hooks.dead_letter(dead, id).await;
    }

    /// Gives a message back that was not handled. An attempt that was counted for it did not happen.
    pub(super) async fn take_back(&self, routed: &mut RoutedMessage, message: &Message) {
        if let Some(letter) = &routed.letter
            && std::mem::take(&mut routed.memory.begun)
            && let Err(error) = retry::put_back(self.shared.database.pool(), &self.shared.sql, letter).await
        {
            tracing::warn!(letter = %letter.id, %error, "a dead letter stays open that was to be tried again");
        }
        if routed.memory.counted.take().is_some()
            && let Err(error) = self.attempts(message, None).take_back().await
        {
            tracing::debug!(event_id = %message.event_id, %error, "an attempt stays counted that did not happen");
        }
    }
}

//! What happens to a message that failed: it is written down, and tried again or dead-lettered.
//!
//! Invariants: a failure is recorded after the rollback and outside of it; what the database prevents uses no attempt; whoever wants to know is told after the
//! commit. Absent here: counting ([`crate::dedup::attempts`]).

use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::store::storable_error;
use outbox_core::{Incoming, Message};
use sea_orm::DbErr;

use super::consumer::{Consumer, Stop};
use super::routed::{Handling, Route, RoutedMessage};
use crate::config::Unreadable;
use crate::dead_letter::{NewDeadLetter, StoredDeadLetter, retry};
use crate::dedup::attempts::{Count, Failure};
use crate::dedup::claim::Claimant;
use crate::handler::describe;
use crate::hook::DeadDelivery;

/// Waits while the database is in trouble.
pub(super) const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(5),
};

/// Tries to write down a failure before the message waits for its turn again. In an outage each takes as long as the pool waits.
const WRITES_MAX: u32 = 5;

/// Longest wait for the database to take back attempts that did not happen, of all messages together.
pub(super) const CORRECTIONS_MAX: Duration = Duration::from_secs(1);

impl Consumer {
    /// Records a failure, after the rollback and outside of it, and decides whether the message comes again.
    #[expect(clippy::too_many_arguments, reason = "one place for all ways to fail")]
    pub(super) async fn failed(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        claimant: Option<&Claimant<'_>>,
        count: Count,
        fatal: bool,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        if let Some(letter) = routed.letter.clone() {
            return self
                .letter_failed(routed, &letter, Some(message), error, stop)
                .await;
        }
        let error = storable_error(error);
        let letter = NewDeadLetter {
            consumer: self.name,
            message: Some(message),
            incoming,
            error: &error,
            attempts: 0,
        };
        let handler = match &routed.route {
            Route::Handler { handler, .. } => Some(handler.clone()),
            _ => None,
        };
        let attempts = self.attempts(message, handler.as_deref());
        let (id, event_type) = (message.event_id, &message.event_type);
        let fail = || attempts.fail(count, fatal, &letter, claimant);
        let failure = match self.until_done(routed, fail, stop).await {
            Ok(failure) => failure,
            Err(handling) => return handling,
        };
        routed.memory.counted = None;
        routed.memory.count_first = true;
        match failure {
            Failure::Retry { attempts } => {
                let backoff = handler.and_then(|handler| handler.options.backoff);
                let backoff = backoff.unwrap_or(self.shared.config.backoff);
                let retry_after = backoff.delay(attempts, &mut fastrand::Rng::new());
                tracing::warn!(consumer = self.name, event_id = %id, %event_type, attempts, ?retry_after, %error, "handler failed");
                Handling::Failed { retry_after }
            }
            Failure::Buried { attempts } => {
                tracing::error!(consumer = self.name, event_id = %id, %event_type, attempts, %error, "kept as a dead letter");
                self.tell_dead_letter(&NewDeadLetter { attempts, ..letter }).await;
                Handling::DeadLettered
            }
            Failure::Done => match handler {
                Some(handler) => self.duplicate(routed, message, &handler, claimant).await,
                None => Handling::Duplicate,
            },
        }
    }

    /// Records a panic that nothing has caught before as a failed attempt.
    pub(super) async fn panicked(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        let Ok(message) = routed.message.as_ref().map(Arc::clone) else {
            return self.unreadable_panicked(incoming, routed, error, stop).await;
        };
        let claimant = self.keeper_of_sequence(&message);
        let count = routed.memory.counted.map_or(Count::Add, Count::Counted);
        self.failed(
            incoming,
            routed,
            &message,
            claimant.as_ref(),
            count,
            false,
            error,
            stop,
        )
        .await
    }

    /// What is no message has no attempts, so its panics and deliveries are counted here. At the limit it ends, whatever else the policy for it would do. If
    /// even writing the dead letter panics, it is tried again at the longest delay: it must not be lost.
    async fn unreadable_panicked(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        if let Some(letter) = routed.letter.clone() {
            return self.letter_failed(routed, &letter, None, error, stop).await;
        }
        let config = &self.shared.config;
        let tries = incoming
            .delivery_count
            .saturating_add(routed.memory.panics.into());
        if tries < config.attempts_max.into() {
            routed.memory.panics += 1;
            let tries = u32::try_from(tries).unwrap_or(u32::MAX);
            return Handling::Later {
                retry_after: config.backoff.delay(tries, &mut fastrand::Rng::new()),
            };
        }
        match config.unreadable {
            Unreadable::Ignore => Handling::Skipped,
            Unreadable::DeadLetter | Unreadable::Retry => {
                self.keep_unreadable(incoming, routed, error, stop).await
            }
        }
    }

    /// A dead letter failed again: it stays, and so do those behind it in its aggregate.
    pub(super) async fn letter_failed(
        &self,
        routed: &mut RoutedMessage,
        letter: &StoredDeadLetter,
        message: Option<&Message>,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        let behind = message.map(|message| (self.name, &message.aggregate));
        let write = || {
            retry::failed_again(
                self.shared.database.pool(),
                &self.shared.sql,
                letter,
                behind,
                error,
            )
        };
        match self.until_done(routed, write, stop).await {
            Ok(()) => {
                tracing::error!(consumer = self.name, letter = %letter.id, %error, "a dead letter failed again");
                let error = storable_error(error);
                let dead = DeadDelivery {
                    consumer: self.name,
                    incoming: &letter.incoming,
                    message,
                    error: &error,
                    attempts: letter.attempts + 1,
                };
                self.shared.hooks.dead_letter(dead, letter.id).await;
                Handling::DeadLettered
            }
            Err(handling) => handling,
        }
    }

    /// Tells who wants to know. The record is committed.
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

    /// The database is in trouble, which is nobody's fault here.
    pub(super) fn later(&self, routed: &mut RoutedMessage, error: &str) -> Handling {
        routed.memory.database_failures += 1;
        let retry_after = TROUBLE.delay(routed.memory.database_failures, &mut fastrand::Rng::new());
        let event_id = routed
            .message
            .as_ref()
            .map(|message| message.event_id.as_uuid())
            .ok();
        tracing::warn!(consumer = self.name, event_id = ?event_id, ?retry_after, %error, "database in trouble, tried again");
        Handling::Later { retry_after }
    }

    /// Repeats a write until the database takes it. After a few times, or if a shutdown comes first, the message waits for its turn again, and what
    /// could not be written down is found out once more.
    pub(super) async fn until_done<T, F>(
        &self,
        routed: &mut RoutedMessage,
        mut write: impl FnMut() -> F,
        stop: &Stop,
    ) -> Result<T, Handling>
    where
        F: Future<Output = Result<T, DbErr>>,
    {
        for tries in 1..=WRITES_MAX {
            let error = match write().await {
                Ok(value) => return Ok(value),
                Err(error) => describe(&error),
            };
            tracing::warn!(consumer = self.name, %error, "a failure cannot be written down, tried again");
            let delay = TROUBLE.delay(tries, &mut fastrand::Rng::new());
            if stop
                .soft
                .run_until_cancelled(tokio::time::sleep(delay))
                .await
                .is_none()
            {
                return Err(Handling::Returned);
            }
        }
        Err(self.later(routed, "a failure could not be written down"))
    }
}

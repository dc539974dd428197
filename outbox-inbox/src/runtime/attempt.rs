//! One try of a message, and what each of its steps may have to do.
//!
//! Invariant: what the database prevents uses no attempt. Not here: the steps themselves ([`super::handle`] has their order).

use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{Incoming, Message};
use sea_orm::DbErr;

use super::consumer::{Consumer, Stop};
use super::routed::{Handling, RoutedMessage};
use crate::dedup::attempts::Attempts;
use crate::handler::describe;

/// Waits while the database is in trouble.
pub(super) const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(5),
};

/// Tries of a write before the message waits for its turn again. In an outage each takes as long as the pool waits.
const WRITES_MAX: u32 = 5;

/// One try of a delivery. `M` is its message, or [`NoMessage`].
pub(super) struct Attempt<'a, M = &'a Arc<Message>> {
    pub(super) consumer: &'a Consumer,
    /// As it was delivered.
    pub(super) incoming: &'a Incoming,
    pub(super) message: M,
    /// The service that recorded the message; empty if that is not known.
    pub(super) source: &'a str,
    /// Whose it is, and what is remembered of it between its tries.
    pub(super) routed: &'a mut RoutedMessage,
    pub(super) stop: &'a Stop,
}

/// The delivery is no message, or nobody has looked yet whether it is one.
pub(super) struct NoMessage;

impl<'a> Attempt<'a, NoMessage> {
    pub(super) fn new(
        consumer: &'a Consumer,
        incoming: &'a Incoming,
        routed: &'a mut RoutedMessage,
        stop: &'a Stop,
    ) -> Self {
        Self {
            consumer,
            incoming,
            message: NoMessage,
            source: "",
            routed,
            stop,
        }
    }

    /// The same, of this message from this source.
    pub(super) fn of(self, message: &'a Arc<Message>, source: &'a str) -> Attempt<'a> {
        Attempt {
            consumer: self.consumer,
            incoming: self.incoming,
            message,
            source,
            routed: self.routed,
            stop: self.stop,
        }
    }
}

impl<M> Attempt<'_, M> {
    /// The message is tried again soon: the database is in trouble, which is nobody's fault here.
    pub(super) fn later(&mut self, error: &str) -> Handling {
        let memory = &mut self.routed.memory;
        memory.database_failures += 1;
        let retry_after = TROUBLE.delay(memory.database_failures, &mut fastrand::Rng::new());
        let event_id = self
            .routed
            .message
            .as_ref()
            .map(|message| message.event_id.as_uuid())
            .ok();
        let consumer = self.consumer.name;
        if self.consumer.vitals.database_failed() {
            tracing::warn!(consumer, event_id = ?event_id, %error, "database in trouble, tried again");
        } else {
            tracing::debug!(consumer, event_id = ?event_id, ?retry_after, %error, "database still in trouble");
        }
        Handling::Later { retry_after }
    }

    /// Repeats a write until the database takes it. After a few tries, or if a shutdown comes first, the message waits for its turn again, and what
    /// could not be written down is found out once more.
    pub(super) async fn until_done<T, F>(&mut self, mut write: impl FnMut() -> F) -> Result<T, Handling>
    where
        F: Future<Output = Result<T, DbErr>>,
    {
        for tries in 1..=WRITES_MAX {
            let error = match write().await {
                Ok(value) => return Ok(value),
                Err(error) => describe(&error),
            };
            let consumer = self.consumer.name;
            if self.consumer.vitals.database_failed() {
                tracing::warn!(consumer, %error, "a failure cannot be written down, tried again");
            } else {
                tracing::debug!(consumer, %error, "a failure still cannot be written down");
            }
            let delay = tokio::time::sleep(TROUBLE.delay(tries, &mut fastrand::Rng::new()));
            if self.stop.soft.run_until_cancelled(delay).await.is_none() {
                return Err(Handling::Returned);
            }
        }
        Err(self.later("a failure could not be written down"))
    }
}

impl<'a> Attempt<'a> {
    /// The count of the message's failed attempts.
    pub(super) fn attempts(&self) -> Attempts<'a> {
        self.consumer.attempts(self.message, self.routed.handler())
    }
}

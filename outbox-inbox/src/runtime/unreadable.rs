//! Deliveries that are no message of an outbox.
//!
//! Invariant: unless the configuration says otherwise they are kept as dead letters, byte for byte. Not here: what they are kept as
//! ([`crate::dead_letter`]).

use outbox_core::store::storable_error;

use super::attempt::{Attempt, NoMessage};
use super::routed::Handling;
use crate::config::Unreadable;
use crate::dead_letter::{self, NewDeadLetter};

impl Attempt<'_, NoMessage> {
    pub(super) async fn unreadable(mut self, error: &str) -> Handling {
        if let Some(handling) = self.begin_letter().await {
            return handling;
        }
        if let Some(letter) = self.routed.letter.clone() {
            return self.letter_failed(&letter, error).await;
        }
        let consumer = self.consumer.name;
        let (subject, stream_sequence) = (&self.incoming.subject, self.incoming.stream_sequence);
        match self.consumer.shared.config.unreadable {
            Unreadable::Retry => {
                tracing::warn!(
                    consumer,
                    subject,
                    stream_sequence,
                    error,
                    "not a message, tried again later"
                );
                Handling::Later {
                    retry_after: self.consumer.shared.config.backoff.max,
                }
            }
            Unreadable::Ignore => {
                tracing::warn!(
                    consumer,
                    subject,
                    stream_sequence,
                    error,
                    "not a message, ignored"
                );
                Handling::Skipped
            }
            Unreadable::DeadLetter => {
                tracing::error!(
                    consumer,
                    subject,
                    stream_sequence,
                    error,
                    "not a message, kept as a dead letter"
                );
                self.keep(error).await
            }
        }
    }

    /// What is no message has no attempts, so its panics and deliveries are counted here. At the limit it ends, whatever else the policy for it would do. If
    /// even writing the dead letter panics, it is tried again at the longest delay: it must not be lost.
    pub(super) async fn unreadable_panicked(mut self, error: &str) -> Handling {
        if let Some(letter) = self.routed.letter.clone() {
            return self.letter_failed(&letter, error).await;
        }
        let config = &self.consumer.shared.config;
        let panics = &mut self.routed.memory.panics;
        let tries = self.incoming.delivery_count.saturating_add((*panics).into());
        if tries < config.attempts_max.into() {
            *panics += 1;
            let tries = u32::try_from(tries).unwrap_or(u32::MAX);
            return Handling::Later {
                retry_after: config.backoff.delay(tries, &mut fastrand::Rng::new()),
            };
        }
        match config.unreadable {
            Unreadable::Ignore => Handling::Skipped,
            Unreadable::DeadLetter | Unreadable::Retry => self.keep(error).await,
        }
    }

    /// Keeps the delivery as a dead letter.
    async fn keep(&mut self, error: &str) -> Handling {
        let error = storable_error(error);
        let (consumer, shared) = (self.consumer, &self.consumer.shared);
        let letter = NewDeadLetter {
            consumer: consumer.name,
            message: None,
            incoming: self.incoming,
            error: &error,
            attempts: 0,
        };
        // A crash after this and before the acknowledgement: it comes again, and the dead letter is there already.
        let insert = || dead_letter::insert(shared.database.pool(), &shared.sql, &letter);
        match self.until_done(insert).await {
            Ok(_) => {
                consumer.tell_dead_letter(&letter).await;
                Handling::DeadLettered
            }
            Err(handling) => handling,
        }
    }
}

//! Deliveries that are no outbox message.
//!
//! Invariant: by default, an unreadable delivery is dead-lettered byte for byte.

use outbox_core::store::storable_error;

use super::dead_letter;
use crate::config::Unreadable;
use crate::dead_letter::{NewDeadLetter, insert};
use crate::dedup::Outcome;
use crate::runtime::run::attempt::Attempt;

pub(crate) async fn handle(mut attempt: Attempt<'_, ()>, error: &str) -> Outcome {
    if let Some(outcome) = dead_letter::begin(&mut attempt).await {
        return outcome;
    }
    if let Some(letter) = attempt.routed.letter.clone() {
        return dead_letter::fail(&mut attempt, &letter, error).await;
    }
    let (consumer, config) = (attempt.consumer.name, &attempt.consumer.shared.config);
    let (subject, stream_sequence) = (&attempt.incoming.subject, attempt.incoming.stream_sequence);
    match config.unreadable {
        Unreadable::Retry => {
            tracing::warn!(
                consumer,
                subject,
                stream_sequence,
                error,
                "delivery is no outbox message, retried later"
            );
            Outcome::postponed(config.backoff.max)
        }
        Unreadable::Ignore => {
            tracing::warn!(
                consumer,
                subject,
                stream_sequence,
                error,
                "delivery is no outbox message, ignored"
            );
            Outcome::Skipped
        }
        Unreadable::DeadLetter => {
            tracing::error!(
                consumer,
                subject,
                stream_sequence,
                error,
                "delivery is no outbox message, dead-lettered"
            );
            keep(attempt, error).await
        }
    }
}

/// If even the dead letter causes a panic, the delivery is retried at the longest delay.
pub(crate) async fn panicked(mut attempt: Attempt<'_, ()>, error: &str) -> Outcome {
    if let Some(letter) = attempt.routed.letter.clone() {
        return dead_letter::fail(&mut attempt, &letter, error).await;
    }
    let config = &attempt.consumer.shared.config;
    let panics = &mut attempt.routed.memory.panics;
    let tries = attempt.incoming.delivery_count.saturating_add((*panics).into());
    if tries < config.attempts_max.into() {
        *panics += 1;
        let tries = u32::try_from(tries).unwrap_or(u32::MAX);
        return Outcome::postponed(config.backoff.delay(tries, &mut fastrand::Rng::new()));
    }
    match config.unreadable {
        Unreadable::Ignore => Outcome::Skipped,
        Unreadable::DeadLetter | Unreadable::Retry => keep(attempt, error).await,
    }
}

async fn keep(mut attempt: Attempt<'_, ()>, error: &str) -> Outcome {
    let error = storable_error(error);
    let (consumer, shared) = (attempt.consumer, &attempt.consumer.shared);
    let letter = NewDeadLetter {
        consumer: consumer.name,
        message: None,
        incoming: attempt.incoming,
        error: &error,
        attempts: 0,
    };
    let insert = || insert(shared.database.pool(), &shared.sql, &letter);
    match attempt.until_done(insert).await {
        Ok(_) => {
            dead_letter::report(consumer, &letter);
            Outcome::DeadLettered
        }
        Err(outcome) => outcome,
    }
}

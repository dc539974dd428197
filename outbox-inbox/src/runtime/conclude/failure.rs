//! Records a failed message, and retries or dead-letters it.
//!
//! Invariants: a failure is recorded after the rollback, and hooks are called after the commit.

use std::time::Duration;

use outbox_core::Message;
use outbox_core::store::storable_error;

use super::dead_letter;
use crate::dead_letter::{NewDeadLetter, retry};
use crate::dedup::attempts::{Count, Failure};
use crate::dedup::claim::Claimant;
use crate::dedup::{Outcome, Retry};
use crate::runtime::consumer::Consumer;
use crate::runtime::message::RoutedMessage;
use crate::runtime::run::attempt::Attempt;

pub(crate) const CORRECTIONS_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn record(
    attempt: &mut Attempt<'_>,
    claimant: Option<&Claimant<'_>>,
    count: Count,
    fatal: bool,
    error: &str,
) -> Outcome {
    if let Some(letter) = attempt.routed.letter.clone() {
        return dead_letter::fail(attempt, &letter, error).await;
    }
    let consumer = attempt.consumer;
    let error = storable_error(error);
    let letter = NewDeadLetter {
        consumer: consumer.name,
        message: Some(attempt.message),
        incoming: attempt.incoming,
        error: &error,
        attempts: 0,
    };
    let attempts = attempt.attempts();
    let fail = || attempts.fail(count, fatal, &letter, claimant);
    let failure = match attempt.until_done(fail).await {
        Ok(failure) => failure,
        Err(outcome) => return outcome,
    };
    attempt.routed.memory.counted = None;
    attempt.routed.memory.count_first = true;
    let handler = attempt.routed.handler();
    let (event_id, event_type) = (attempt.message.event_id, &attempt.message.event_type);
    match failure {
        Failure::Retry { attempts } => {
            let backoff = handler.and_then(|handler| handler.options.backoff);
            let backoff = backoff.unwrap_or(consumer.shared.config.backoff);
            let after = backoff.delay(attempts, &mut fastrand::Rng::new());
            tracing::warn!(consumer = consumer.name, %event_id, %event_type, attempts, retry_after = ?after, %error, "handler failed");
            let reason = Retry::Failed;
            Outcome::Retry { after, reason }
        }
        Failure::Buried { attempts } => {
            tracing::error!(consumer = consumer.name, %event_id, %event_type, attempts, %error, "message dead-lettered");
            dead_letter::report(consumer, &NewDeadLetter { attempts, ..letter });
            Outcome::DeadLettered
        }
        Failure::Done => Outcome::Duplicate,
    }
}

/// Stores the time of the next attempt. If the process crashes before this write, the attempt
/// remains counted.
pub(crate) async fn defer(
    attempt: &mut Attempt<'_>,
    claimant: Option<&Claimant<'_>>,
    wait: Duration,
    error: &str,
) -> Outcome {
    let (consumer, message) = (attempt.consumer, attempt.message);
    if attempt.routed.letter.is_none() {
        let pool = consumer.shared.database.pool();
        if let Some(claimant) = claimant
            && let Err(outcome) = attempt.until_done(|| claimant.note_failing(pool)).await
        {
            return outcome;
        }
        if attempt.routed.memory.counted.is_some() {
            let attempts = attempt.attempts();
            match attempt.until_done(|| attempts.take_back()).await {
                Ok(()) => attempt.routed.memory.counted = None,
                Err(Outcome::Returned) => return Outcome::Returned,
                Err(_) => {}
            }
        }
    }
    let (event_id, event_type) = (message.event_id, &message.event_type);
    tracing::info!(consumer = consumer.name, %event_id, %event_type, ?wait, error, "handler deferred the message");
    Outcome::Retry {
        after: wait,
        reason: Retry::Deferred,
    }
}

pub(crate) async fn dead_letter(attempt: &mut Attempt<'_>, error: &str) -> Outcome {
    if let Some(outcome) = attempt.wait_for_turn().await {
        return outcome;
    }
    let keeper = attempt.keeper_of_sequence();
    record(attempt, keeper.as_ref(), Count::Nothing, true, error).await
}

pub(crate) async fn take_back(consumer: &Consumer, routed: &mut RoutedMessage, message: &Message) {
    let shared = &consumer.shared;
    if let Some(letter) = &routed.letter
        && std::mem::take(&mut routed.memory.begun)
        && let Err(error) = retry::put_back(shared.database.pool(), &shared.sql, letter).await
    {
        tracing::warn!(letter = %letter.id, %error, "mark for retry was lost, the dead letter stays open");
    }
    if routed.memory.counted.take().is_some()
        && let Err(error) = consumer.attempts(message, None).take_back().await
    {
        tracing::debug!(event_id = %message.event_id, %error, "an attempt stays counted although no handler ran");
    }
}

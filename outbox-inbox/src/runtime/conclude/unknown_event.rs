//! Event types and versions without a handler in this process.
//!
//! Invariant: an event type with another subscriber under the consumer's name is never silently
//! acknowledged.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_core::SubscriberError;

use super::failure;
use crate::config::{UnknownEvent, UnknownVersion};
use crate::database::finish;
use crate::dedup::Outcome;
use crate::dedup::claim::Claimant;
use crate::handler::describe;
use crate::runtime::consumer::Consumer;
use crate::runtime::run::attempt::Attempt;

const LOGGED_MAX: usize = 1_000;

const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct UnhandledTypes(Mutex<HashSet<String>>);

#[derive(Debug, PartialEq, Eq)]
enum News {
    Yes,
    Last,
    No,
}

impl UnhandledTypes {
    fn meet(&self, what: &str) -> News {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= LOGGED_MAX || !logged.insert(what.to_owned()) {
            return News::No;
        }
        if logged.len() < LOGGED_MAX {
            News::Yes
        } else {
            News::Last
        }
    }
}

pub(crate) async fn not_wanted(attempt: &mut Attempt<'_>) -> Outcome {
    tracing::debug!(event_type = %attempt.message.event_type, "event type has no subscriber here, skipped");
    let consumer = attempt.consumer;
    let keeper = attempt
        .keeper_of_sequence()
        .filter(|_| consumer.keeps_sequences());
    let Some(place) = keeper.as_ref().and_then(Claimant::place) else {
        return Outcome::Skipped;
    };
    // If the process crashes after this commit, the stored sequence already includes the message.
    let claimed = async {
        let _turn = consumer.shared.database.turn().await;
        let tx = consumer.shared.database.begin().await?;
        let turn = place.claim(&tx, attempt.gaps()).await;
        finish(tx, turn).await
    };
    match claimed.await {
        Ok(Outcome::Early { expected, failing }) => attempt.early(expected, failing),
        Ok(_) => Outcome::Skipped,
        Err(error) => attempt.later(&describe(&error)),
    }
}

pub(crate) async fn unknown_version(attempt: &mut Attempt<'_>) -> Outcome {
    let (event_type, version) = (&attempt.message.event_type, attempt.message.event_version);
    let error = format!(
        "event `{event_type}` version {version} has no handler in consumer `{}`, but other versions have \
         handlers",
        attempt.consumer.name
    );
    match attempt.consumer.shared.config.unknown_version {
        UnknownVersion::Retry if attempt.routed.letter.is_none() => {
            send_back(attempt, &format!("{event_type} version {version}")).await
        }
        UnknownVersion::Ignore if attempt.routed.letter.is_none() => {
            tracing::warn!(event_id = %attempt.message.event_id, %error, "ignored");
            not_wanted(attempt).await
        }
        _ => failure::dead_letter(attempt, &error).await,
    }
}

pub(crate) async fn unknown_event(attempt: &mut Attempt<'_>) -> Outcome {
    let (consumer, event_type) = (attempt.consumer, &attempt.message.event_type);
    match consumer.shared.config.unknown_event {
        UnknownEvent::Retry => send_back(attempt, event_type).await,
        UnknownEvent::Skip => {
            if is_new(consumer, event_type) {
                tracing::warn!(
                    consumer = consumer.name,
                    %event_type,
                    "event type has no handler in this process, but another program subscribed to it: its \
                     messages are skipped (UnknownEvent::Skip)"
                );
            }
            not_wanted(attempt).await
        }
        UnknownEvent::DeadLetter => {
            let error = format!(
                "event `{event_type}` has no handler in this process, but another version of consumer `{}` \
                 subscribed to it",
                consumer.name
            );
            failure::dead_letter(attempt, &error).await
        }
    }
}

async fn send_back(attempt: &mut Attempt<'_>, what: &str) -> Outcome {
    let consumer = attempt.consumer;
    // The database stores that this sequence is being retried, so later messages of the aggregate
    // wait in every process.
    let keeper = consumer.keeper_of_sequence(attempt.message, attempt.source);
    if let Some(place) = keeper.as_ref().and_then(Claimant::place)
        && let Err(error) = place.note_failing(consumer.shared.database.pool()).await
    {
        return attempt.later(&describe(&error));
    }
    if is_new(consumer, what) {
        tracing::warn!(
            consumer = consumer.name,
            event_type = what,
            "event type or version has no handler in this process, but another program handles it: its \
             messages return to the broker until that program runs; if it never will, change UnknownEvent or \
             UnknownVersion, or remove the event type from the consumer's filter (operations.md, Versions)"
        );
    }
    let returns = u32::try_from(attempt.incoming.delivery_count).unwrap_or(u32::MAX);
    let backoff = consumer.shared.config.backoff;
    Outcome::SentBack {
        after: backoff.delay(returns, &mut fastrand::Rng::new()),
    }
}

pub(crate) fn unknown_wishes(consumer: &Consumer, error: &SubscriberError) -> Outcome {
    tracing::warn!(consumer = consumer.name, error = %describe(error), "subscribers of an event type are unknown, checked again");
    Outcome::postponed(ASK_AGAIN_AFTER)
}

fn is_new(consumer: &Consumer, what: &str) -> bool {
    let news = consumer.unhandled.meet(what);
    if news == News::Last {
        tracing::warn!(
            consumer = consumer.name,
            "{LOGGED_MAX} event types and versions without a handler were logged; others are only counted in \
             `inbox_sent_back_total` and `inbox_skipped_total`"
        );
    }
    news != News::No
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_limit_of_unknown_types_is_announced_once() {
        let unhandled = UnhandledTypes::default();
        for number in 1..LOGGED_MAX {
            assert_eq!(unhandled.meet(&number.to_string()), News::Yes);
        }
        assert_eq!(unhandled.meet("1"), News::No);
        assert_eq!(unhandled.meet("the last"), News::Last);
        assert_eq!(unhandled.meet("another"), News::No);
        assert_eq!(unhandled.meet("the last"), News::No);
    }
}

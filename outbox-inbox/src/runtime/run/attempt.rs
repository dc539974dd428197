//! One attempt at a message.
//!
//! Invariants: a failure outside the handler uses no attempt. If an earlier run may have failed or
//! crashed, the attempt is counted before the handler runs.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{Incoming, Message};
use sea_orm::DbErr;

use super::transaction::{self, outcome_of, runs_in_transaction};
use crate::dedup::attempts::{Attempts, Count};
use crate::dedup::claim::Claimant;
use crate::dedup::{Cause, Outcome, key};
use crate::handler::{HandlerError, Registration, Strategy, describe};
use crate::hook::Handled;
use crate::panics::guard;
use crate::runtime::conclude::{dead_letter, duplicate, failure, unknown_event, unreadable};
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::{Route, RoutedMessage};

pub(crate) const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(5),
};

/// Maximum tries of a write; after the last try the message is requeued. In an outage, each try
/// takes the pool's acquire timeout.
const WRITES_MAX: u32 = 5;

/// Maximum interruptions of a message. A further conflict or lost connection counts as a failure,
/// because the handler may cause it.
const INTERRUPTIONS_MAX: u32 = 5;

pub(crate) struct Attempt<'a, M = &'a Arc<Message>> {
    pub(crate) consumer: &'a Consumer,
    pub(crate) incoming: &'a Incoming,
    pub(crate) message: M,
    pub(crate) source: &'a str,
    pub(crate) routed: &'a mut RoutedMessage,
    pub(crate) stop: &'a Stop,
}

pub(crate) struct Input<'a> {
    pub(crate) handler: &'a Registration,
    pub(crate) message: Arc<Message>,
    pub(crate) claimant: Claimant<'a>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(
        consumer: &'a Consumer,
        message: &'a Arc<Message>,
        source: &'a str,
        handler: &'a Registration,
        upcast_to: Option<u32>,
    ) -> Result<Self, HandlerError> {
        let input = match upcast_to {
            Some(version) => Arc::new(guard("upcaster", || {
                consumer.shared.services.upcasters.apply(message, version)
            })??),
            None => message.clone(),
        };
        let strategy = handler.options.strategy;
        if matches!(strategy, Strategy::Sequence { .. }) && message.sequence.is_none() {
            return Err(HandlerError::fatal(
                "the message has no sequence number, which strategy `sequence` needs; its event was `unsequenced` when it was recorded",
            ));
        }
        let id = match strategy {
            Strategy::Key(key_of) => key::id(&guard("business key", || key_of(&input))??),
            _ => message.event_id.as_uuid(),
        };
        Ok(Self {
            handler,
            message: input,
            claimant: consumer.claimant(message, source, strategy, id),
        })
    }
}

/// Runs an attempt, in a task that is never aborted. `panic`: an earlier panic, which counts as an
/// attempt.
pub(crate) async fn handle(
    consumer: &Consumer,
    incoming: &Incoming,
    routed: &mut RoutedMessage,
    stop: &Stop,
    panic: Option<&str>,
) -> Outcome {
    let (source, message) = (routed.source.clone(), routed.message.clone());
    match message {
        Ok(message) => {
            let attempt = Attempt {
                consumer,
                incoming,
                message: &message,
                source: &source,
                routed,
                stop,
            };
            match panic {
                None => attempt.handle().await,
                Some(error) => attempt.panicked(error).await,
            }
        }
        Err(refused) => {
            let attempt = Attempt {
                consumer,
                incoming,
                message: (),
                source: &source,
                routed,
                stop,
            };
            match panic {
                None => unreadable::handle(attempt, &refused.to_string()).await,
                Some(error) => unreadable::panicked(attempt, error).await,
            }
        }
    }
}

impl Attempt<'_> {
    async fn handle(mut self) -> Outcome {
        if let Some(outcome) = dead_letter::begin(&mut self).await {
            return outcome;
        }
        let outcome = match self.routed.route.clone() {
            Route::Handler { handler, upcast_to } => self.run(&handler, upcast_to).await,
            Route::UnknownVersion => unknown_event::unknown_version(&mut self).await,
            Route::UnknownEvent => unknown_event::unknown_event(&mut self).await,
            Route::NotWanted | Route::Unreadable if self.routed.letter.is_some() => {
                let error = format!(
                    "event `{}` has no handler in consumer `{}`",
                    self.message.event_type, self.consumer.name
                );
                failure::dead_letter(&mut self, &error).await
            }
            Route::NotWanted | Route::Unreadable => unknown_event::not_wanted(&mut self).await,
        };
        if outcome == Outcome::Returned {
            failure::take_back(self.consumer, self.routed, self.message).await;
        }
        outcome
    }

    async fn panicked(mut self, error: &str) -> Outcome {
        let keeper = self.keeper_of_sequence();
        let count = self.count_of_failure();
        failure::record(&mut self, keeper.as_ref(), count, false, error).await
    }

    async fn run(&mut self, handler: &Registration, upcast_to: Option<u32>) -> Outcome {
        let input = Input::new(self.consumer, self.message, self.source, handler, upcast_to);
        let claimant = match &input {
            Ok(input) => Some(input.claimant),
            Err(_) => match self.wait_for_turn().await {
                Some(outcome) => return outcome,
                None => self.keeper_of_sequence(),
            },
        };
        let mut ran = self.run_once(&input).await;
        if ran == Err(Outcome::Uncounted) && self.routed.letter.is_none() {
            self.routed.memory.count_first = true;
            ran = self.run_once(&input).await;
        }
        self.conclude(ran, claimant.as_ref()).await
    }

    async fn run_once(&mut self, input: &Result<Input<'_>, HandlerError>) -> Result<(), Outcome> {
        let memory = &self.routed.memory;
        if memory.count_first && memory.counted.is_none() {
            self.count(input.as_ref().ok()).await?;
        }
        match input {
            Ok(input) => transaction::run(self.consumer, self.routed, input, self.stop).await,
            Err(error) => Err(outcome_of(error)),
        }
    }

    async fn count(&mut self, input: Option<&Input<'_>>) -> Result<(), Outcome> {
        if let Some(input) = input {
            duplicate::ask(self, input).await?;
        }
        match self.attempts().start().await {
            Ok(attempt) => self.routed.memory.counted = Some(attempt?),
            Err(error) => return Err(Outcome::unavailable(&error)),
        }
        Ok(())
    }

    async fn conclude(&mut self, ran: Result<(), Outcome>, claimant: Option<&Claimant<'_>>) -> Outcome {
        let outcome = match ran {
            Ok(()) => return self.handled().await,
            Err(outcome) => outcome,
        };
        let (error, cause) = match outcome {
            Outcome::Duplicate => return duplicate::conclude(self).await,
            Outcome::Early { expected, failing } => return self.early(expected, failing),
            Outcome::Uncounted => return Outcome::postponed(TROUBLE.min),
            Outcome::Deferred { wait, error } => {
                return failure::defer(self, claimant, wait, &error).await;
            }
            Outcome::Taken => (TAKEN.to_owned(), Cause::Fatal),
            Outcome::Late => (LATE.to_owned(), Cause::Fatal),
            Outcome::Failed { error, cause } => (error, cause),
            concluded => return concluded,
        };
        let count = match cause {
            Cause::Unavailable => return self.later(&error),
            Cause::TimedOut if self.consumer.shared.database.responds().await => self.count_of_failure(),
            Cause::Interrupted | Cause::TimedOut => {
                let interruptions = &mut self.routed.memory.interruptions;
                *interruptions += 1;
                if *interruptions <= INTERRUPTIONS_MAX {
                    return self.later(&error);
                }
                *interruptions = 0;
                self.count_of_failure()
            }
            Cause::Exhausted { attempts } => Count::Counted(attempts),
            Cause::Handler | Cause::Fatal => self.count_of_failure(),
        };
        let fatal = matches!(cause, Cause::Fatal | Cause::Exhausted { .. });
        failure::record(self, claimant, count, fatal, &error).await
    }

    async fn handled(&mut self) -> Outcome {
        let is_recorded = match self.routed.handler() {
            Some(handler) => runs_in_transaction(self.routed, handler),
            None => true,
        };
        if self.routed.memory.counted.is_some() && !is_recorded {
            let attempts = self.attempts();
            if let Err(outcome) = self.until_done(|| attempts.end()).await {
                return outcome;
            }
        }
        self.consumer.shared.services.hooks.handled(Handled {
            consumer: self.consumer.name,
            message: self.message,
        });
        Outcome::Handled
    }

    fn count_of_failure(&self) -> Count {
        self.routed.memory.counted.map_or(Count::Add, Count::Counted)
    }
}

impl<'a> Attempt<'a> {
    pub(crate) fn attempts(&self) -> Attempts<'a> {
        self.consumer.attempts(self.message, self.routed.handler())
    }
}

impl<M> Attempt<'_, M> {
    pub(crate) fn later(&mut self, error: &str) -> Outcome {
        let memory = &mut self.routed.memory;
        memory.database_failures += 1;
        let after = TROUBLE.delay(memory.database_failures, &mut fastrand::Rng::new());
        let message = self.routed.message.as_ref();
        let event_id = message.map(|message| message.event_id.as_uuid()).ok();
        let consumer = self.consumer.name;
        if self.consumer.vitals.database_failed() {
            tracing::warn!(consumer, event_id = ?event_id, %error, "database unavailable, retried");
        } else {
            tracing::debug!(consumer, event_id = ?event_id, ?after, %error, "database still unavailable");
        }
        Outcome::postponed(after)
    }

    pub(crate) async fn until_done<T, F>(&mut self, mut write: impl FnMut() -> F) -> Result<T, Outcome>
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
                tracing::warn!(consumer, %error, "a failure cannot be recorded, retried");
            } else {
                tracing::debug!(consumer, %error, "a failure still cannot be recorded");
            }
            let delay = tokio::time::sleep(TROUBLE.delay(tries, &mut fastrand::Rng::new()));
            if self.stop.soft.run_until_cancelled(delay).await.is_none() {
                return Err(Outcome::Returned);
            }
        }
        Err(self.later("a failure could not be recorded"))
    }
}

const TAKEN: &str = "another event with the same sequence was applied: the producer's database was restored, \
                     or a second service publishes events of the aggregate under the same `source`; retry \
                     the dead letter to apply it";

const LATE: &str = "the message arrived after its gap in the aggregate was skipped; retry the dead letter to \
                    apply it now";

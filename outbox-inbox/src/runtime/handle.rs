//! The way of one message: taken, counted, run, and concluded.
//!
//! Invariants: what is not the handler's fault uses no attempt; a message that may have failed before, perhaps with its process, is counted before it runs.
//! Not here: the run itself ([`super::run`]), failures ([`super::fail`]), and several messages in one transaction ([`super::batch`]).

use outbox_core::Incoming;

use super::attempt::{Attempt, TROUBLE};
use super::consumer::{Consumer, Stop};
use super::ready::Ready;
use super::routed::{Handling, Route, RoutedMessage};
use super::run::{RunOutcome, outcome_of, runs_in_transaction};
use crate::dedup::attempts::{Count, Start};
use crate::dedup::claim::Claimant;
use crate::handler::{HandlerError, Registration, describe};
use crate::hook::Handled;

/// Runs of one message that a conflict or a lost connection may end before this counts as a failure, so that a handler that provokes it each
/// time reaches its limit.
const INTERRUPTIONS_MAX: u32 = 5;

impl Consumer {
    /// Handles a message once. Run it in a task that nobody aborts.
    pub(crate) async fn handle(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        stop: &Stop,
    ) -> Handling {
        let source = routed.source.clone();
        let attempt = Attempt::new(self, incoming, routed, stop);
        match attempt.routed.message.clone() {
            Ok(message) => attempt.of(&message, &source).handle().await,
            Err(error) => attempt.unreadable(&error.to_string()).await,
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
        let source = routed.source.clone();
        let attempt = Attempt::new(self, incoming, routed, stop);
        match attempt.routed.message.clone() {
            Ok(message) => attempt.of(&message, &source).panicked(error).await,
            Err(_) => attempt.unreadable_panicked(error).await,
        }
    }
}

impl Attempt<'_> {
    async fn handle(mut self) -> Handling {
        if let Some(handling) = self.begin_letter().await {
            return handling;
        }
        let handling = match self.routed.route.clone() {
            Route::Handler { handler, upcast_to } => self.run(&handler, upcast_to).await,
            Route::UnknownVersion => self.unknown_version().await,
            Route::UnknownEvent => self.unknown_event().await,
            Route::NotWanted | Route::Unreadable if self.routed.letter.is_some() => {
                let error = format!(
                    "event `{}` has no handler in consumer `{}`",
                    self.message.event_type, self.consumer.name
                );
                self.dead_letter(&error).await
            }
            Route::NotWanted | Route::Unreadable => self.not_wanted().await,
        };
        if handling == Handling::Returned {
            self.consumer.take_back(self.routed, self.message).await;
        }
        handling
    }

    /// Runs the handler once, if it may run, and records what came of it.
    async fn run(&mut self, handler: &Registration, upcast_to: Option<u32>) -> Handling {
        let ready = self.consumer.ready(self.message, self.source, handler, upcast_to);
        let claimant = match &ready {
            Ok(ready) => Some(ready.claimant),
            // It cannot be handled. It is dead-lettered when its turn has come.
            Err(_) => match self.wait_for_turn().await {
                Some(handling) => return handling,
                None => self.keeper_of_sequence(),
            },
        };
        let mut outcome = self.run_once(&ready).await;
        // The attempts of a dead letter are counted in the dead letter.
        if matches!(outcome, RunOutcome::CountFirst) && self.routed.letter.is_none() {
            self.routed.memory.count_first = true;
            outcome = self.run_once(&ready).await;
        }
        self.conclude(outcome, claimant.as_ref()).await
    }

    /// Runs the handler, counted first if it may have failed before. `ready`: the message with its handler, or why the handler cannot be given it.
    async fn run_once(&mut self, ready: &Result<Ready<'_>, HandlerError>) -> RunOutcome {
        if self.routed.memory.count_first
            && self.routed.memory.counted.is_none()
            && let Some(outcome) = self.count(ready.as_ref().ok()).await
        {
            return outcome;
        }
        match ready {
            Ok(ready) => self.consumer.run(self.routed, ready, self.stop).await,
            Err(error) => outcome_of(error),
        }
    }

    /// Counts the attempt, after the strategy was asked. `Some`: the handler must not run.
    async fn count(&mut self, ready: Option<&Ready<'_>>) -> Option<RunOutcome> {
        if let Some(ready) = ready
            && let Some(outcome) = self.ask(ready).await
        {
            return Some(outcome);
        }
        Some(match self.attempts().start().await {
            Ok(Start::Attempt(attempt)) => {
                self.routed.memory.counted = Some(attempt);
                return None;
            }
            Ok(Start::Handled) => RunOutcome::Duplicate,
            Ok(Start::Dead) => RunOutcome::Over(Handling::Duplicate),
            Ok(Start::Exhausted { attempts, last_error }) => {
                let error = text_of_unfinished(attempts, last_error.as_deref());
                RunOutcome::Exhausted { attempts, error }
            }
            Ok(Start::Running) => RunOutcome::runs_elsewhere(self.consumer.timeout(self.routed.handler())),
            Err(error) => RunOutcome::NotStarted(describe(&error)),
        })
    }

    /// Says what follows from a run, and records a failure.
    async fn conclude(&mut self, outcome: RunOutcome, claimant: Option<&Claimant<'_>>) -> Handling {
        let count = self.routed.memory.counted.map_or(Count::Add, Count::Counted);
        let (count, fatal, error) = match outcome {
            RunOutcome::Handled { result } => return self.handled(result.as_deref()).await,
            RunOutcome::Duplicate => return self.duplicate(claimant).await,
            RunOutcome::Over(handling) => return handling,
            RunOutcome::Early { expected, failing } => return self.early(expected, failing),
            RunOutcome::NotStarted(error) => return self.later(&error),
            RunOutcome::CountFirst => {
                let retry_after = TROUBLE.min;
                return Handling::Later { retry_after };
            }
            RunOutcome::Failed { error, fatal } => (count, fatal, error),
            RunOutcome::Deferred { wait, error } => return self.deferred(claimant, wait, &error).await,
            RunOutcome::Exhausted { attempts, error } => (Count::Counted(attempts), true, error),
            RunOutcome::TimedOut(error) if self.consumer.shared.database.responds().await => {
                (count, false, error)
            }
            RunOutcome::Interrupted(error) | RunOutcome::TimedOut(error) => {
                let interruptions = &mut self.routed.memory.interruptions;
                *interruptions += 1;
                if *interruptions <= INTERRUPTIONS_MAX {
                    return self.later(&error);
                }
                *interruptions = 0;
                (count, false, error)
            }
        };
        self.failed(claimant, count, fatal, &error).await
    }

    /// The message took effect now.
    async fn handled(&mut self, result: Option<&[u8]>) -> Handling {
        let is_recorded = match self.routed.handler() {
            Some(handler) => runs_in_transaction(self.routed, handler),
            None => true,
        };
        // Without a transaction nothing has ended the row that was counted. A crash before it: the message comes again, and may run again.
        if self.routed.memory.counted.is_some() && !is_recorded {
            let attempts = self.attempts();
            if let Err(handling) = self.until_done(|| attempts.end()).await {
                return handling;
            }
        }
        self.consumer.shared.hooks.handled(Handled {
            consumer: self.consumer.name,
            message: self.message,
            duplicate: false,
            result,
        });
        Handling::Handled
    }
}

fn text_of_unfinished(attempts: u32, last_error: Option<&str>) -> String {
    let last = last_error
        .map(|error| format!("; last error: {error}"))
        .unwrap_or_default();
    format!("handler was started {attempts} times and left no result the last time: its process ended{last}")
}

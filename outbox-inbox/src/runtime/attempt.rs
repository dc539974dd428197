//! Decides what happens to one message: run its handler, dead-letter it, skip it, or try it later.
//!
//! Invariants: what is not the handler's fault uses no attempt; a message that may have failed before, perhaps with its process, is counted before it runs.
//! Absent here: the run itself ([`super::run`]), failures ([`super::fail`]), and several messages in one transaction ([`super::batch`]).

use std::sync::Arc;

use outbox_core::store::storable_error;
use outbox_core::{Incoming, Message};
use sea_orm::DbErr;
use uuid::Uuid;

use super::call::text_of_unfinished;
use super::consumer::{Consumer, Stop};
use super::fail::TROUBLE;
use super::routed::{Handling, Route, RoutedMessage};
use super::run::{RunOutcome, outcome_of, runs_in_transaction};
use crate::config::{UnknownVersion, Unreadable};
use crate::dead_letter::{self, NewDeadLetter, retry};
use crate::dedup::attempts::{Count, Start};
use crate::dedup::claim::Claimant;
use crate::dedup::key;
use crate::dedup::sequence::Turn;
use crate::handler::{HandlerError, Registration, Strategy, describe};
use crate::hook::Handled;
use crate::panics::guard;

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
        if let Some(letter) = routed.letter.clone()
            && !routed.memory.begun
        {
            match retry::begin(self.shared.database.pool(), &self.shared.sql, &letter).await {
                Ok(true) => routed.memory.begun = true,
                Ok(false) => return Handling::Skipped,
                Err(error) => return self.later(routed, &describe(&error)),
            }
        }
        if let Some(letter) = routed.letter.clone()
            && let Some(error) = dead_letter::without_payload(&letter.incoming)
        {
            let message = routed.message.as_ref().ok().cloned();
            return self
                .letter_failed(routed, &letter, message.as_deref(), &error, stop)
                .await;
        }
        let message = match &routed.message {
            Ok(message) => message.clone(),
            Err(error) => {
                let error = error.to_string();
                return self.unreadable_message(incoming, routed, &error, stop).await;
            }
        };
        let handling = match routed.route.clone() {
            Route::Handler { handler, upcast_to } => {
                self.attempt(incoming, routed, &message, &handler, upcast_to, stop)
                    .await
            }
            Route::UnknownVersion => self.unknown_version(incoming, routed, &message, stop).await,
            Route::UnknownEvent => self.unknown_event(incoming, routed, &message, stop).await,
            Route::NotWanted | Route::Unreadable if routed.letter.is_some() => {
                let error = format!(
                    "event `{}` has no handler in consumer `{}`",
                    message.event_type, self.name
                );
                self.failed(
                    incoming,
                    routed,
                    &message,
                    None,
                    Count::Nothing,
                    true,
                    &error,
                    stop,
                )
                .await
            }
            Route::NotWanted | Route::Unreadable => self.not_wanted(routed, &message).await,
        };
        if handling == Handling::Returned {
            self.take_back(routed, &message).await;
        }
        handling
    }

    async fn unreadable_message(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        let (subject, stream_sequence) = (&incoming.subject, incoming.stream_sequence);
        if let Some(letter) = routed.letter.clone() {
            return self.letter_failed(routed, &letter, None, error, stop).await;
        }
        if self.shared.config.unreadable == Unreadable::Retry {
            tracing::warn!(
                consumer = self.name,
                subject,
                stream_sequence,
                error,
                "not a message, tried again later"
            );
            return Handling::Later {
                retry_after: self.shared.config.backoff.max,
            };
        }
        if self.shared.config.unreadable == Unreadable::Ignore {
            tracing::warn!(
                consumer = self.name,
                subject,
                stream_sequence,
                error,
                "not a message, ignored"
            );
            return Handling::Skipped;
        }
        tracing::error!(
            consumer = self.name,
            subject,
            stream_sequence,
            error,
            "not a message, kept as a dead letter"
        );
        self.keep_unreadable(incoming, routed, error, stop).await
    }

    /// Keeps what is no message as a dead letter.
    pub(super) async fn keep_unreadable(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        let error = storable_error(error);
        let letter = NewDeadLetter {
            consumer: self.name,
            message: None,
            incoming,
            error: &error,
            attempts: 0,
        };
        // A crash after this and before the acknowledgement: it comes again, and the dead letter is there already.
        let insert = || dead_letter::insert(self.shared.database.pool(), &self.shared.sql, &letter);
        match self.until_done(routed, insert, stop).await {
            Ok(_) => {
                self.tell_dead_letter(&letter).await;
                Handling::DeadLettered
            }
            Err(handling) => handling,
        }
    }

    async fn unknown_version(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        stop: &Stop,
    ) -> Handling {
        let error = format!(
            "event `{}` version {} has no handler in consumer `{}`, other versions have",
            message.event_type, message.event_version, self.name
        );
        match self.shared.config.unknown_version {
            UnknownVersion::Retry if routed.letter.is_none() => {
                let what = format!("{} version {}", message.event_type, message.event_version);
                return self.send_back(incoming, routed, message, &what).await;
            }
            UnknownVersion::Ignore if routed.letter.is_none() => {
                tracing::warn!(event_id = %message.event_id, %error, "ignored");
                return self.not_wanted(routed, message).await;
            }
            _ => {}
        }
        if let Some(handling) = self.wait_for_turn(routed, message, None).await {
            return handling;
        }
        let claimant = self.keeper_of_sequence(message);
        self.failed(
            incoming,
            routed,
            message,
            claimant.as_ref(),
            Count::Nothing,
            true,
            &error,
            stop,
        )
        .await
    }

    /// Acknowledges what nobody asked for. Where sequences are kept it still counts.
    pub(super) async fn not_wanted(&self, routed: &mut RoutedMessage, message: &Arc<Message>) -> Handling {
        tracing::debug!(event_type = %message.event_type, "event type is not wanted here, skipped");
        let keeper = self
            .keeper_of_sequence(message)
            .filter(|_| self.keeps_sequences());
        let Some(place) = keeper.as_ref().and_then(Claimant::place) else {
            return Handling::Skipped;
        };
        // A crash after the commit: the message comes again, and its number is passed already.
        let claimed = async {
            let tx = self.shared.database.begin().await?;
            let turn = place.claim(&tx, self.gaps(routed, None)).await?;
            tx.commit().await?;
            Ok::<_, DbErr>(turn)
        };
        match claimed.await {
            Ok(Turn::Early { expected, failing }) => self.early(routed, message, None, expected, failing),
            Ok(_) => Handling::Skipped,
            Err(error) => self.later(routed, &describe(&error)),
        }
    }

    /// Runs the handler once, if it may run, and records what came of it.
    async fn attempt(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        handler: &Arc<Registration>,
        upcast_to: Option<u32>,
        stop: &Stop,
    ) -> Handling {
        let prepared = self.prepare(message, handler, upcast_to);
        let claimant = match &prepared {
            Ok((_, id)) => Some(self.claimant(message, handler.options.strategy, *id)),
            // It cannot be handled; it is dead-lettered when its turn has come.
            Err(_) => match self.wait_for_turn(routed, message, Some(handler)).await {
                Some(handling) => return handling,
                None => self.keeper_of_sequence(message),
            },
        };
        let ready = prepared.as_ref().map(|(input, _)| input);
        let outcome = self
            .counted_run(routed, message, handler, ready, claimant.as_ref(), stop)
            .await;
        let count = routed.memory.counted.map_or(Count::Add, Count::Counted);
        let outcome = match outcome {
            RunOutcome::TimedOut(error) if self.shared.database.responds().await => {
                RunOutcome::Failed { error, fatal: false }
            }
            RunOutcome::TimedOut(error) => RunOutcome::Interrupted(error),
            outcome => outcome,
        };
        let (count, fatal, error) = match outcome {
            RunOutcome::Handled { result } => {
                // Without a transaction nothing has ended the row that was counted. A crash before it: the message comes again, and may run again.
                if routed.memory.counted.is_some() && !runs_in_transaction(routed, handler) {
                    let end = async || self.attempts(message, None).end().await;
                    if let Err(handling) = self.until_done(routed, end, stop).await {
                        return handling;
                    }
                }
                self.shared.hooks.handled(Handled {
                    consumer: self.name,
                    message,
                    duplicate: false,
                    result: result.as_deref(),
                });
                return Handling::Handled;
            }
            RunOutcome::Duplicate => {
                return self.duplicate(routed, message, handler, claimant.as_ref()).await;
            }
            RunOutcome::Dead => return Handling::Duplicate,
            RunOutcome::Early { expected, failing } => {
                return self.early(routed, message, Some(handler), expected, failing);
            }
            RunOutcome::Failed { error, fatal } => (count, fatal, error),
            RunOutcome::Exhausted { attempts, error } => (Count::Counted(attempts), true, error),
            RunOutcome::Interrupted(error) | RunOutcome::TimedOut(error) => {
                routed.memory.interruptions += 1;
                if routed.memory.interruptions <= INTERRUPTIONS_MAX {
                    return self.later(routed, &error);
                }
                routed.memory.interruptions = 0;
                (count, false, error)
            }
            RunOutcome::NotStarted(error) => return self.later(routed, &error),
            RunOutcome::Busy(retry_after) => return Handling::Later { retry_after },
            RunOutcome::CountFirst => {
                let retry_after = TROUBLE.min;
                return Handling::Later { retry_after };
            }
            RunOutcome::Gone => return Handling::Skipped,
            RunOutcome::Stopped => return Handling::Returned,
        };
        let claimant = claimant.as_ref();
        self.failed(incoming, routed, message, claimant, count, fatal, &error, stop)
            .await
    }

    /// Runs the handler once, counted first if it may have failed before. `ready`: its input, or why there is none.
    async fn counted_run(
        &self,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        handler: &Registration,
        ready: Result<&Arc<Message>, &HandlerError>,
        claimant: Option<&Claimant<'_>>,
        stop: &Stop,
    ) -> RunOutcome {
        let mut redo = true;
        loop {
            if routed.memory.count_first && routed.memory.counted.is_none() {
                if let (Ok(_), Some(claimant)) = (ready, claimant)
                    && let Some(outcome) = self.ask(routed, handler, claimant).await
                {
                    return outcome;
                }
                match self.attempts(message, Some(handler)).start().await {
                    Ok(Start::Attempt(attempt)) => routed.memory.counted = Some(attempt),
                    Ok(Start::Handled) => return RunOutcome::Duplicate,
                    Ok(Start::Dead) => return RunOutcome::Dead,
                    Ok(Start::Exhausted { attempts, last_error }) => {
                        let error = text_of_unfinished(attempts, last_error.as_deref());
                        return RunOutcome::Exhausted { attempts, error };
                    }
                    Ok(Start::Running) => return RunOutcome::Busy(self.timeout(Some(handler))),
                    Err(error) => return RunOutcome::NotStarted(describe(&error)),
                }
            }
            let outcome = match (ready, claimant) {
                (Ok(input), Some(claimant)) => self.run(routed, input, handler, claimant, stop).await,
                (Err(error), _) => outcome_of(error),
                // What has an input has a claimant.
                (Ok(_), None) => return RunOutcome::Duplicate,
            };
            match outcome {
                // The attempts of a dead letter are counted in the dead letter.
                RunOutcome::CountFirst if redo && routed.letter.is_none() => {
                    routed.memory.count_first = true;
                    redo = false;
                }
                outcome => return outcome,
            }
        }
    }

    /// What the handler is given, and the key under which it takes effect. Both ask code of the application, whose panics use attempts as a handler's do.
    pub(super) fn prepare(
        &self,
        message: &Arc<Message>,
        handler: &Registration,
        upcast_to: Option<u32>,
    ) -> Result<(Arc<Message>, Uuid), HandlerError> {
        let input = match upcast_to {
            Some(version) => Arc::new(guard("upcaster", || {
                self.shared.upcasters.apply(message, version)
            })??),
            None => message.clone(),
        };
        if matches!(handler.options.strategy, Strategy::Sequence { .. }) && message.sequence.is_none() {
            return Err(HandlerError::fatal(
                "the message has no sequence number, which strategy `sequence` needs; its event was `unsequenced` when it was recorded",
            ));
        }
        let id = match handler.options.strategy {
            Strategy::Key(key_of) => key::id(&guard("business key", || key_of(&input))??),
            _ => message.event_id.as_uuid(),
        };
        Ok((input, id))
    }

    pub(super) fn claimant<'a>(&'a self, message: &'a Message, strategy: Strategy, id: Uuid) -> Claimant<'a> {
        Claimant {
            sql: &self.shared.sql,
            consumer: self.name,
            message,
            strategy,
            id,
        }
    }
}

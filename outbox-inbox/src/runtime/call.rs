//! Calls a handler: with its surroundings, within its time, and with its panics caught.
//!
//! Invariant: however the handler ends, the call ends with an effect or a [`RunOutcome`]; nothing of the handler is used after a panic. Not here: beginning
//! and ending the transaction ([`super::run`], [`super::batch`]).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use outbox_core::{Events, Message, MessageContext};
use sea_orm::DatabaseTransaction;
use tokio::time::Instant;

use super::consumer::{Consumer, Stop};
use super::ready::Ready;
use super::routed::{Handling, RoutedMessage};
use super::run::{ERROR, RunOutcome, outcome_of};
use crate::database::{Trouble, trouble_in};
use crate::dedup::constraint;
use crate::handler::{
    Effect, FromContext as _, HandlerContext, HandlerError, Outbox, Recorded, Registration, Strategy,
};
use crate::layer::{Next, TimedOut, Timeout};
use crate::panics::{guard, text_of};
use crate::telemetry::{self, Ran};

/// A handler that is about to be called.
pub(super) struct Call<'a> {
    consumer: &'a Consumer,
    handler: &'a Registration,
    /// Which attempt this is, from 1.
    attempt: u32,
    stop: &'a Stop,
}

impl Consumer {
    /// A handler that is about to be called. `attempt`: which one this is, from 1.
    pub(super) fn call<'a>(&'a self, handler: &'a Registration, attempt: u32, stop: &'a Stop) -> Call<'a> {
        Call {
            consumer: self,
            handler,
            attempt,
            stop,
        }
    }

    /// Runs the handler without a transaction.
    pub(super) async fn run_without_transaction(
        &self,
        routed: &RoutedMessage,
        ready: &Ready<'_>,
        stop: &Stop,
    ) -> RunOutcome {
        let call = self.call(ready.handler, routed.memory.counted.unwrap_or(1), stop);
        match call.outside(std::slice::from_ref(&ready.input)).await {
            Ok(effect) => RunOutcome::Handled {
                result: effect.result,
            },
            Err(outcome) => outcome,
        }
    }

    /// Records the events that a handler returned.
    pub(super) async fn emit(
        &self,
        transaction: &DatabaseTransaction,
        message: &Message,
        events: Events,
        recorded: &Recorded,
    ) -> Result<(), RunOutcome> {
        if events.is_empty() {
            return Ok(());
        }
        let context = HandlerContext {
            messages: &[],
            consumer: self.name,
            attempt: 0,
            transaction: Some(transaction),
            outbox: &self.shared.outbox,
            recorded,
            state: &self.shared.state,
        };
        let record = async {
            Outbox::from_context(&context)?.record(events).await?;
            Ok::<_, HandlerError>(())
        };
        let outcome = context_of(message).scope(record).await;
        outcome.map_err(|error| outcome_of(&error))
    }
}

impl Call<'_> {
    /// Calls the handler in a transaction, with one message or with several.
    pub(super) async fn inside(
        &self,
        transaction: &DatabaseTransaction,
        recorded: &Recorded,
        messages: &[Arc<Message>],
    ) -> Result<Effect, RunOutcome> {
        self.with(messages, Some(transaction), recorded).await
    }

    /// Calls the handler without a transaction, with one message or with several.
    pub(super) async fn outside(&self, messages: &[Arc<Message>]) -> Result<Effect, RunOutcome> {
        self.with(messages, None, &Recorded::default()).await
    }

    async fn with(
        &self,
        messages: &[Arc<Message>],
        transaction: Option<&DatabaseTransaction>,
        recorded: &Recorded,
    ) -> Result<Effect, RunOutcome> {
        if self.stop.hard.is_cancelled() {
            // Not even the part before its first await.
            return Err(RunOutcome::Over(Handling::Returned));
        }
        let (consumer, handler) = (self.consumer, self.handler);
        let context = HandlerContext {
            messages,
            consumer: consumer.name,
            attempt: self.attempt,
            transaction,
            outbox: &consumer.shared.outbox,
            recorded,
            state: &consumer.shared.state,
        };
        let limit = consumer.timeout(Some(handler));
        let _begun = consumer.vitals.begin_handler(handler.handler, limit);
        let next = Next::new(&consumer.shared.middleware, handler.invoke);
        let call = Timeout(limit).call(context, next);
        // Unwind safety: after a panic nothing of the handler is used again, and its transaction is rolled back.
        let call = AssertUnwindSafe(follow_up_context(messages).scope(call)).catch_unwind();
        let started = Instant::now();
        let outcome = tokio::select! {
            biased;
            outcome = call => match outcome {
                Ok(Ok(effect)) => Ok(effect),
                Ok(Err(error)) => Err(match (outcome_of_handler(handler, &error), transaction) {
                    (RunOutcome::Interrupted(text), Some(_)) if is_elsewhere(&error, recorded) => {
                        RunOutcome::Failed {
                            error: format!("{text}; {ELSEWHERE}"),
                            fatal: false,
                        }
                    }
                    (outcome, _) => outcome,
                }),
                Err(panic) => Err(RunOutcome::Failed {
                    error: format!("handler panicked: {}", text_of(&*panic)),
                    fatal: false,
                }),
            },
            () = self.stop.hard.cancelled() => Err(RunOutcome::Over(Handling::Returned)),
        };
        let ran = match &outcome {
            Ok(_) => Ran::Handled,
            Err(RunOutcome::Over(_)) => Ran::Stopped,
            Err(RunOutcome::Interrupted(_)) => Ran::Interrupted,
            Err(RunOutcome::Deferred { .. }) => Ran::Deferred,
            Err(_) => Ran::Failed,
        };
        telemetry::ran(consumer.name, handler.label(&messages[0]), ran, started.elapsed());
        outcome
    }
}

fn outcome_of_handler(handler: &Registration, error: &HandlerError) -> RunOutcome {
    if let Strategy::Constraint(names) = handler.options.strategy
        && !error.is_fatal()
        && error.waits().is_none()
        && guard(ERROR, || constraint::violated(error.source(), names)).unwrap_or_default()
    {
        return RunOutcome::Duplicate;
    }
    if error.source().is::<TimedOut>() {
        return RunOutcome::TimedOut(error.to_string());
    }
    outcome_of(error)
}

/// While the handler runs, its transaction holds locks; on SQLite, the only write lock.
const ELSEWHERE: &str = "the error comes from another connection than the handler's transaction, which may hold the lock that this connection waits for; write \
                         through the handler's `Tx`";

/// Whether the handler returns a conflict that its own transaction has not reported. If the handler's
/// own transaction holds the lock, every run fails, so the run counts as an attempt.
fn is_elsewhere(error: &HandlerError, recorded: &Recorded) -> bool {
    let integrity = recorded.integrity();
    !integrity.has_conflict()
        && !integrity.is_exposed()
        && guard(ERROR, || trouble_in(error.source())).is_ok_and(|trouble| trouble == Some(Trouble::Conflict))
}

/// Follow-up events of one message pass on its correlation and trace, and name it as their cause. Those of a batch have no single cause.
fn follow_up_context(messages: &[Arc<Message>]) -> MessageContext {
    match messages {
        [message] => context_of(message),
        _ => MessageContext::default(),
    }
}

fn context_of(message: &Message) -> MessageContext {
    let context = MessageContext::from_headers(&message.headers);
    let id = message.event_id.to_string();
    MessageContext {
        correlation_id: Some(context.correlation_id.unwrap_or_else(|| id.clone())),
        causation_id: Some(id),
        traceparent: context.traceparent,
        tracestate: context.tracestate,
    }
}

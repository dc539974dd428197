//! Calls a handler with its context and timeout, and catches panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use outbox_core::{Message, MessageContext};
use sea_orm::DatabaseTransaction;
use tokio::time::Instant;

use super::transaction::{ERROR, outcome_of};
use crate::database::{Trouble, trouble_in};
use crate::dedup::{Cause, Outcome, constraint};
use crate::handler::{Effect, HandlerContext, HandlerError, Recorded, Registration, Strategy};
use crate::layer::{Next, TimedOut, Timeout};
use crate::panics::{guard, text_of};
use crate::runtime::consumer::{Consumer, Stop};
use crate::telemetry;

pub(crate) struct Call<'a> {
    pub(crate) consumer: &'a Consumer,
    pub(crate) handler: &'a Registration,
    pub(crate) attempt: u32,
    pub(crate) stop: &'a Stop,
}

impl Call<'_> {
    pub(crate) async fn run(
        &self,
        messages: &[Arc<Message>],
        transaction: Option<&DatabaseTransaction>,
        recorded: &Recorded,
    ) -> Result<Effect, Outcome> {
        if self.stop.hard.is_cancelled() {
            return Err(Outcome::Returned);
        }
        let (consumer, handler) = (self.consumer, self.handler);
        let context = HandlerContext {
            messages,
            consumer: consumer.name,
            attempt: self.attempt,
            transaction,
            outbox: &consumer.shared.services.outbox,
            recorded,
            state: &consumer.shared.services.state,
        };
        let limit = consumer.timeout(Some(handler));
        let _begun = consumer.vitals.begin_handler(handler.handler, limit);
        let next = Next::new(&consumer.shared.services.middleware, handler.invoke);
        let call = Timeout(limit).call(context, next);
        let call = AssertUnwindSafe(follow_up_context(messages).scope(call)).catch_unwind();
        let started = Instant::now();
        let outcome = tokio::select! {
            biased;
            outcome = call => match outcome {
                Ok(Ok(effect)) => Ok(effect),
                Ok(Err(error)) => Err(match outcome_of_call(handler, &error) {
                    Outcome::Failed { error: text, cause: Cause::Interrupted }
                        if transaction.is_some() && is_elsewhere(&error, recorded) =>
                    {
                        Outcome::failed(format!("{text}; {ELSEWHERE}"))
                    }
                    outcome => outcome,
                }),
                Err(panic) => Err(Outcome::failed(format!("handler panicked: {}", text_of(&*panic)))),
            },
            () = self.stop.hard.cancelled() => Err(Outcome::Returned),
        };
        let ran = match &outcome {
            Ok(_) => "handled",
            Err(Outcome::Returned) => "stopped",
            Err(Outcome::Failed {
                cause: Cause::Interrupted,
                ..
            }) => "interrupted",
            Err(Outcome::Deferred { .. }) => "deferred",
            Err(_) => "failed",
        };
        telemetry::ran(consumer.name, handler.label(&messages[0]), ran, started.elapsed());
        outcome
    }
}

fn outcome_of_call(handler: &Registration, error: &HandlerError) -> Outcome {
    if let Strategy::Constraint(names) = handler.options.strategy
        && !error.is_fatal()
        && error.waits().is_none()
        && guard(ERROR, || constraint::violated(error.source(), names)).unwrap_or_default()
    {
        return Outcome::Duplicate;
    }
    if error.source().is::<TimedOut>() {
        return Outcome::Failed {
            error: error.to_string(),
            cause: Cause::TimedOut,
        };
    }
    outcome_of(error)
}

const ELSEWHERE: &str = "the error comes from another connection than the handler's transaction, which may \
                         hold the awaited lock; write through the handler's `Tx`";

/// Whether another connection waits for a lock. If the handler's own transaction holds the lock,
/// every run fails.
fn is_elsewhere(error: &HandlerError, recorded: &Recorded) -> bool {
    let integrity = recorded.integrity();
    !integrity.has_conflict()
        && !integrity.is_exposed()
        && guard(ERROR, || trouble_in(error.source())).is_ok_and(|trouble| trouble == Some(Trouble::Conflict))
}

/// Follow-up events of a batch have no single cause.
fn follow_up_context(messages: &[Arc<Message>]) -> MessageContext {
    match messages {
        [message] => context_of(message),
        _ => MessageContext::default(),
    }
}

pub(crate) fn context_of(message: &Message) -> MessageContext {
    let context = MessageContext::from_headers(&message.headers);
    let id = message.event_id.to_string();
    MessageContext {
        correlation_id: Some(context.correlation_id.unwrap_or_else(|| id.clone())),
        causation_id: Some(id),
        traceparent: context.traceparent,
        tracestate: context.tracestate,
    }
}

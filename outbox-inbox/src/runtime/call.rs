//! Calls a handler: with its surroundings, within its time, and with its panics caught.
//!
//! Invariant: however the handler ends, this ends with a [`RunOutcome`]; nothing of the handler is used after a panic. Absent here: beginning and ending the
//! transaction.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::store::{OutboxAdmin as _, Selection};
use outbox_core::{DedupKey, DedupStoreError, Events, Message, MessageContext, MessageId, StoreClaim, wake};
use outbox_sea_orm::SqlStore;
use sea_orm::DatabaseTransaction;
use tokio::time::Instant;

use super::consumer::{Consumer, Stop};
use super::fail::TROUBLE;
use super::routed::RoutedMessage;
use super::run::{ERROR, RunOutcome, outcome_of, runs_in_transaction};
use crate::dedup::claim::Claimant;
use crate::dedup::constraint;
use crate::handler::{
    Effect, FromContext as _, HandlerContext, HandlerError, Outbox, Registration, Strategy, describe,
};
use crate::layer::{Next, TimedOut, Timeout};
use crate::panics::{guard, text_of};
use crate::telemetry::{self, Ran};

/// Added to the handler's timeout for the time that its transaction takes beside it.
pub(super) const STORE_LEASE_MARGIN: Duration = Duration::from_secs(10);

/// What a handler has done with its transaction and in its outbox.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Set as soon as something may have been recorded, by whichever way.
    pub(crate) any: AtomicBool,
    /// Ids of what went through [`Outbox`] or was returned.
    pub(crate) ids: Mutex<Vec<MessageId>>,
    /// Set as soon as the transaction may be gone although the handler succeeds: a statement failed or was dropped, or somebody had the
    /// transaction itself, where we do not see what becomes of it.
    pub(crate) in_doubt: AtomicBool,
}

impl Recorded {
    pub(super) fn ids(&self) -> Vec<MessageId> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the transaction must be asked before the commit if it is still there.
    pub(super) fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// After the commit: the relays of this process look for it.
    pub(super) fn wake(&self) {
        if self.any.load(Ordering::Relaxed) {
            wake::notify();
        }
    }
}

impl Consumer {
    /// Calls the handler with one message, or with several.
    pub(super) async fn call(
        &self,
        messages: &[Arc<Message>],
        handler: &Registration,
        attempt: u32,
        transaction: Option<&DatabaseTransaction>,
        recorded: &Recorded,
        stop: &Stop,
    ) -> Result<Effect, RunOutcome> {
        let context = HandlerContext {
            messages,
            consumer: self.name,
            attempt,
            transaction,
            outbox: &self.shared.outbox,
            recorded,
            state: &self.shared.state,
        };
        let limit = self.timeout(Some(handler));
        let _begun = self.vitals.begin_handler(handler.handler, limit);
        let next = Next::new(&self.shared.middleware, handler.invoke);
        let call = Timeout(limit).call(context, next);
        // Unwind safety: after a panic nothing of the handler is used again, and its transaction is rolled back.
        let call = AssertUnwindSafe(follow_up_context(messages).scope(call)).catch_unwind();
        let started = Instant::now();
        let outcome = tokio::select! {
            biased;
            outcome = call => match outcome {
                Ok(Ok(effect)) => Ok(effect),
                Ok(Err(error)) => Err(outcome_of_handler(handler, &error)),
                Err(panic) => Err(RunOutcome::Failed {
                    error: format!("handler panicked: {}", text_of(&*panic)),
                    fatal: false,
                }),
            },
            () = stop.hard.cancelled() => Err(RunOutcome::Stopped),
        };
        let ran = match &outcome {
            Ok(_) => Ran::Handled,
            Err(RunOutcome::Stopped) => Ran::Stopped,
            Err(RunOutcome::Interrupted(_)) => Ran::Interrupted,
            Err(_) => Ran::Failed,
        };
        telemetry::ran(self.name, &messages[0].event_type, ran, started.elapsed());
        outcome
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

    /// Publishes again what a handler recorded the first time: 16 bytes per message.
    pub(super) async fn reemit(&self, ids: &[u8]) -> Result<(), String> {
        let pool = self.shared.database.pool().clone();
        let store = SqlStore::new(pool)
            .with_names(&self.shared.outbox.names)
            .map_err(|error| error.to_string())?;
        for id in ids.chunks_exact(16) {
            let Ok(id) = uuid::Uuid::from_slice(id) else {
                continue;
            };
            let copied = store.replay(&Selection::id(MessageId::from(id))).await;
            match copied {
                Ok(0) => tracing::warn!(
                    consumer = self.name,
                    message_id = %id,
                    "a follow-up event is not published again: it is pending still, or no longer kept in the outbox"
                ),
                Ok(_) => wake::notify(),
                Err(error) => return Err(describe(&error)),
            }
        }
        Ok(())
    }

    /// Runs the handler under a claim in a store outside the database.
    pub(super) async fn run_externally(
        &self,
        routed: &RoutedMessage,
        input: &Arc<Message>,
        handler: &Registration,
        claimant: &Claimant<'_>,
        stop: &Stop,
    ) -> RunOutcome {
        let Some(store) = &self.shared.store else {
            // Checked at the start.
            return RunOutcome::NotStarted("there is no deduplication store".to_owned());
        };
        let key = DedupKey::new(self.name, claimant.message.event_id);
        let lease = self.timeout(Some(handler)) + STORE_LEASE_MARGIN;
        let claimed = Instant::now();
        // A crash from here to the completion: the claim ends with its lease, and the effect may happen again.
        let token = match store.claim(&key, lease).await {
            Ok(StoreClaim::Mine(token)) => token,
            Ok(StoreClaim::Done) => return RunOutcome::Duplicate,
            Ok(StoreClaim::InProgress) => return RunOutcome::Busy(lease / 4),
            Err(error) => return RunOutcome::NotStarted(describe(&error)),
        };
        let outcome = if runs_in_transaction(routed, handler) {
            self.run_in_transaction(routed, input, handler, claimant, stop)
                .await
        } else {
            let recorded = Recorded::default();
            let attempt = routed.memory.counted.unwrap_or(1);
            let messages = std::slice::from_ref(input);
            match self.call(messages, handler, attempt, None, &recorded, stop).await {
                Ok(effect) => RunOutcome::Handled {
                    result: effect.result,
                },
                Err(outcome) => outcome,
            }
        };
        let closed = match outcome {
            RunOutcome::Handled { .. } | RunOutcome::Duplicate => {
                let complete = || store.complete(&key, token, self.shared.config.retention);
                until_completed(complete, claimed + lease, stop).await
            }
            _ => store.release(&key, token).await.map(|()| true),
        };
        let event_id = claimant.message.event_id;
        match closed {
            Ok(true) => {}
            Ok(false) => tracing::error!(
                consumer = self.name,
                %event_id,
                "the handler outlived its claim in the deduplication store; the message may have taken effect twice"
            ),
            Err(error) => tracing::warn!(
                consumer = self.name,
                %event_id,
                error = %describe(&error),
                "the deduplication store was not told; the message may take effect again"
            ),
        }
        outcome
    }
}

/// Tells the store, again and again while the lease lasts: the effect has happened, and completing may be repeated.
async fn until_completed<F>(
    mut complete: impl FnMut() -> F,
    end: Instant,
    stop: &Stop,
) -> Result<bool, DedupStoreError>
where
    F: Future<Output = Result<bool, DedupStoreError>>,
{
    let mut tries = 0;
    loop {
        let error = match complete().await {
            Err(error @ DedupStoreError::Unavailable { .. }) => error,
            closed => return closed,
        };
        tries += 1;
        let delay = TROUBLE.delay(tries, &mut fastrand::Rng::new());
        if Instant::now() + delay >= end {
            return Err(error);
        }
        tracing::debug!(%error, "the deduplication store is told again");
        let sleep = tokio::time::sleep(delay);
        if stop.hard.run_until_cancelled(sleep).await.is_none() {
            return Err(error);
        }
    }
}

fn outcome_of_handler(handler: &Registration, error: &HandlerError) -> RunOutcome {
    if let Strategy::Constraint(names) = handler.options.strategy
        && !error.is_fatal()
        && guard(ERROR, || constraint::violated(error.source(), names)).unwrap_or_default()
    {
        return RunOutcome::Duplicate;
    }
    if error.source().is::<TimedOut>() {
        return RunOutcome::TimedOut(error.to_string());
    }
    outcome_of(error)
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

pub(super) fn text_of_unfinished(attempts: u32, last_error: Option<&str>) -> String {
    let last = last_error
        .map(|error| format!("; last error: {error}"))
        .unwrap_or_default();
    format!("handler was started {attempts} times and left no result the last time: its process ended{last}")
}

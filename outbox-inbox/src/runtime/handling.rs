//! Handles one message: claim, run, commit; or rolls back and records the failure.
//!
//! Invariants: the inbox row and the handler's effects commit together; what is not the handler's fault uses no attempt; nothing here is
//! ever aborted from outside except the handler itself, because a dropped `begin` poisons the pool. So every transaction has an end, and
//! its row locks with it. Absent here: talking to the broker.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::codec::DecodeError;
use outbox_core::retry::Backoff;
use outbox_core::store::storable_error;
use outbox_core::{Incoming, Message, MessageContext, wake};
use sea_orm::{DatabaseTransaction, DbErr};
use tokio::time::timeout;

use super::consumer::{Consumer, Route, Stop};
use crate::config::{UnknownVersion, Unreadable};
use crate::database::{Trouble, roll_back, trouble, trouble_in};
use crate::dead_letter::{self, Letter};
use crate::dedup::message_id::{Claim, Count, Failure, Start};
use crate::handler::{HandlerContext, HandlerError, Registration, describe};

/// Waits while the database is in trouble.
const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(5),
};

/// Runs of one delivery that a conflict or a lost connection may end before this counts as a failure, so that a handler that
/// provokes it each time reaches its limit.
const INTERRUPTIONS_MAX: u32 = 5;

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// It took effect.
    Handled,
    /// It was handled or given up before.
    Duplicate,
    /// It failed and shall come again.
    Failed { retry_after: Duration },
    /// It was given up and is kept.
    DeadLettered,
    /// Nobody wants it.
    Skipped,
    /// It was not handled because of a shutdown.
    Returned,
}

/// How one run of the handler ended.
enum Pass {
    Handled,
    Duplicate,
    /// The attempt must be counted before the handler may run.
    CountFirst,
    Failed {
        error: String,
        fatal: bool,
    },
    /// The database ended it; trying again at once may succeed.
    Interrupted(String),
    /// The database did not let it begin.
    Blocked(String),
    /// The shutdown cancelled it.
    Stopped,
}

impl Consumer {
    /// Handles a delivery. Run it in a task that nobody aborts.
    pub(crate) async fn handle(
        &self,
        incoming: &Incoming,
        message: Result<Arc<Message>, DecodeError>,
        stop: &Stop,
    ) -> Handling {
        let message = match message {
            Ok(message) => message,
            Err(error) => return self.unreadable(incoming, &error, stop).await,
        };
        match self.route(&message) {
            Route::Handler(handler) => self.attempts(incoming, &message, handler, stop).await,
            Route::NotWanted => {
                tracing::debug!(event_type = %message.event_type, "event type is not wanted here, skipped");
                Handling::Skipped
            }
            Route::UnknownVersion => self.unknown_version(incoming, &message, stop).await,
        }
    }

    async fn unreadable(&self, incoming: &Incoming, error: &DecodeError, stop: &Stop) -> Handling {
        if self.shared.config.unreadable == Unreadable::Ignore {
            tracing::warn!(subject = %incoming.subject, position = incoming.position, %error, "not a message, ignored");
            return Handling::Skipped;
        }
        tracing::error!(subject = %incoming.subject, position = incoming.position, %error, "not a message, kept as a dead letter");
        let error = storable_error(&error.to_string());
        let letter = Letter {
            consumer: self.name,
            message_id: None,
            incoming,
            error: &error,
            attempts: 0,
        };
        // A crash after this and before the acknowledgement: it comes again, and the letter is there already.
        let insert = || dead_letter::insert(self.shared.database.pool(), &self.shared.sql, &letter);
        match self.until_done(insert, stop).await {
            Some(_) => Handling::DeadLettered,
            None => Handling::Returned,
        }
    }

    async fn unknown_version(&self, incoming: &Incoming, message: &Message, stop: &Stop) -> Handling {
        let error = format!(
            "event `{}` version {} has no handler in consumer `{}`, other versions have",
            message.event_type, message.event_version, self.name
        );
        if self.shared.config.unknown_version == UnknownVersion::Retry {
            tracing::warn!(message_id = %message.id, %error, "delivered again later");
            return Handling::Failed {
                retry_after: self.shared.config.backoff.max,
            };
        }
        self.failed(incoming, message, Count::Nothing, true, &error, stop)
            .await
    }

    /// Runs the handler until there is a result. While the database is in trouble it waits here instead of giving the message back: that
    /// keeps the order within the aggregate and uses no attempts.
    async fn attempts(
        &self,
        incoming: &Incoming,
        message: &Arc<Message>,
        handler: Registration,
        stop: &Stop,
    ) -> Handling {
        let dedup = self.dedup(message);
        // A message that was delivered before may have ended the process each time, so it is counted before it runs.
        let mut count_first = incoming.delivery_count > 1;
        let mut counted = None;
        let (mut interruptions, mut waits) = (0, 0);
        loop {
            let pass = match (count_first, counted) {
                (true, None) => match dedup.start().await {
                    Ok(Start::Attempt(attempt)) => {
                        counted = Some(attempt);
                        continue;
                    }
                    Ok(Start::Done) => Pass::Duplicate,
                    Ok(Start::Exhausted { attempts, last_error }) => {
                        let error = unfinished(attempts, last_error.as_deref());
                        let count = Count::Counted(attempts);
                        return self.failed(incoming, message, count, true, &error, stop).await;
                    }
                    Ok(Start::Running) => {
                        return Handling::Failed {
                            retry_after: self.shared.config.handler_timeout,
                        };
                    }
                    Err(error) => Pass::Blocked(describe(&error)),
                },
                _ => self.pass(message, handler, counted, stop).await,
            };
            let (error, interrupted) = match pass {
                Pass::Handled => return Handling::Handled,
                Pass::Duplicate => return Handling::Duplicate,
                Pass::CountFirst => {
                    count_first = true;
                    continue;
                }
                Pass::Failed { error, fatal } => {
                    let count = counted.map_or(Count::Add, Count::Counted);
                    return self.failed(incoming, message, count, fatal, &error, stop).await;
                }
                Pass::Interrupted(error) => (error, true),
                Pass::Blocked(error) => (error, false),
                Pass::Stopped => return self.returned(message, counted.is_some()).await,
            };
            interruptions += u32::from(interrupted);
            if interruptions > INTERRUPTIONS_MAX {
                let count = counted.map_or(Count::Add, Count::Counted);
                return self.failed(incoming, message, count, false, &error, stop).await;
            }
            tracing::warn!(message_id = %message.id, %error, "database in trouble, tried again");
            if !self.pause(&mut waits, stop).await {
                return self.returned(message, counted.is_some()).await;
            }
        }
    }

    /// Begins, claims, runs the handler, commits.
    async fn pass(
        &self,
        message: &Arc<Message>,
        handler: Registration,
        counted: Option<u32>,
        stop: &Stop,
    ) -> Pass {
        let dedup = self.dedup(message);
        // A crash here has done nothing: the message is delivered again.
        let tx = match self.shared.database.begin().await {
            Ok(tx) => tx,
            Err(error) => return Pass::Blocked(describe(&error)),
        };
        // From here to the commit a crash rolls back row, effects and follow-up events together.
        let claim = match dedup.claim(&tx, counted.is_some()).await {
            Ok(Claim::Mine) => None,
            Ok(Claim::Done) => Some(Pass::Duplicate),
            Ok(Claim::CountFirst) => Some(Pass::CountFirst),
            Err(error) => Some(Pass::Blocked(describe(&error))),
        };
        if let Some(pass) = claim {
            roll_back(tx).await;
            return pass;
        }
        let recorded = AtomicBool::new(false);
        let outcome = self
            .call(message, handler, counted.unwrap_or(1), &tx, &recorded, stop)
            .await;
        let pass = match outcome {
            Ok(()) => match dedup.still_holds(&tx).await {
                Ok(true) => None,
                Ok(false) => Some(swallowed(None)),
                Err(error) if trouble(&error) == Trouble::Statement => Some(swallowed(Some(&error))),
                Err(error) => Some(Pass::Interrupted(describe(&error))),
            },
            Err(pass) => Some(pass),
        };
        if let Some(pass) = pass {
            let connected = roll_back(tx).await;
            return match pass {
                // The handler may have wrapped the error beyond recognition; that its connection is gone says enough.
                Pass::Failed { error, fatal: false } if !connected => Pass::Interrupted(error),
                pass => pass,
            };
        }
        match tx.commit().await {
            Ok(()) => {
                // A crash from here to the acknowledgement: the message is delivered again and found handled.
                if recorded.load(Ordering::Relaxed) {
                    wake::notify();
                }
                Pass::Handled
            }
            // The outcome may be unknown. The next pass finds out: if the row is there, it is a duplicate.
            Err(error) if trouble(&error) != Trouble::Statement => Pass::Interrupted(describe(&error)),
            Err(error) => Pass::Failed {
                error: describe(&error),
                fatal: false,
            },
        }
    }

    /// Calls the handler, within its time, and with its panics caught.
    async fn call(
        &self,
        message: &Arc<Message>,
        handler: Registration,
        attempt: u32,
        transaction: &DatabaseTransaction,
        recorded: &AtomicBool,
        stop: &Stop,
    ) -> Result<(), Pass> {
        let context = HandlerContext {
            message,
            consumer: self.name,
            attempt,
            transaction,
            outbox: &self.shared.outbox,
            recorded,
            state: &self.shared.state,
        };
        let limit = self.shared.config.handler_timeout;
        // Unwind safety: after a panic nothing of the handler is used again, and its transaction is rolled back.
        let call =
            AssertUnwindSafe(follow_up_context(message).scope((handler.invoke)(context))).catch_unwind();
        let failed = |error| Pass::Failed { error, fatal: false };
        tokio::select! {
            biased;
            outcome = timeout(limit, call) => match outcome {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(error))) => Err(pass_of(&error)),
                Ok(Err(panic)) => Err(failed(format!("handler panicked: {}", text_of(&*panic)))),
                Err(_) => Err(failed(format!("handler did not finish within {limit:?} and was cancelled"))),
            },
            () = stop.hard.cancelled() => Err(Pass::Stopped),
        }
    }

    /// Records a failure, after the rollback and outside of it, and decides whether the message comes again.
    async fn failed(
        &self,
        incoming: &Incoming,
        message: &Message,
        count: Count,
        fatal: bool,
        error: &str,
        stop: &Stop,
    ) -> Handling {
        let error = storable_error(error);
        let letter = Letter {
            consumer: self.name,
            message_id: Some(message.id),
            incoming,
            error: &error,
            attempts: 0,
        };
        let (id, event_type) = (message.id, &message.event_type);
        let dedup = self.dedup(message);
        match self.until_done(|| dedup.fail(count, fatal, &letter), stop).await {
            Some(Failure::Retry { attempts }) => {
                let retry_after = self
                    .shared
                    .config
                    .backoff
                    .delay(attempts, &mut fastrand::Rng::new());
                tracing::warn!(message_id = %id, %event_type, attempts, ?retry_after, %error, "handler failed");
                Handling::Failed { retry_after }
            }
            Some(Failure::Buried) => {
                tracing::error!(message_id = %id, %event_type, %error, "given up, kept as a dead letter");
                Handling::DeadLettered
            }
            Some(Failure::Done) => Handling::Duplicate,
            None => Handling::Returned,
        }
    }

    /// Gives a message back that was not handled. An attempt that was counted for it did not happen.
    async fn returned(&self, message: &Message, counted: bool) -> Handling {
        if counted && let Err(error) = self.dedup(message).take_back().await {
            tracing::debug!(message_id = %message.id, %error, "an attempt stays counted that did not happen");
        }
        Handling::Returned
    }

    /// Repeats a write until the database takes it; `None` if a shutdown comes first.
    async fn until_done<T, F>(&self, mut write: impl FnMut() -> F, stop: &Stop) -> Option<T>
    where
        F: Future<Output = Result<T, DbErr>>,
    {
        let mut waits = 0;
        loop {
            match write().await {
                Ok(value) => return Some(value),
                Err(error) => tracing::warn!(error = %describe(&error), "database in trouble, tried again"),
            }
            if !self.pause(&mut waits, stop).await {
                return None;
            }
        }
    }

    /// Waits longer each time; returns false if a shutdown comes first.
    async fn pause(&self, waits: &mut u32, stop: &Stop) -> bool {
        *waits += 1;
        let delay = TROUBLE.delay(*waits, &mut fastrand::Rng::new());
        stop.soft
            .run_until_cancelled(tokio::time::sleep(delay))
            .await
            .is_some()
    }
}

/// Follow-up events pass on the correlation and trace, and name the handled message as their cause.
fn follow_up_context(message: &Message) -> MessageContext {
    let context = MessageContext::from_headers(&message.headers);
    let id = message.id.to_string();
    MessageContext {
        correlation_id: Some(context.correlation_id.unwrap_or_else(|| id.clone())),
        causation_id: Some(id),
        traceparent: context.traceparent,
        tracestate: context.tracestate,
    }
}

fn pass_of(error: &HandlerError) -> Pass {
    let text = describe(error.source());
    match trouble_in(error.source()) {
        // A fatal error is meant as such, whatever caused it.
        Some(Trouble::Conflict | Trouble::Unavailable) if !error.is_fatal() => Pass::Interrupted(text),
        _ => Pass::Failed {
            error: text,
            fatal: error.is_fatal(),
        },
    }
}

fn swallowed(error: Option<&DbErr>) -> Pass {
    let mut text = "handler returned Ok, but its transaction is gone: it went on after a database error; return such errors, or \
                    try what may fail inside `tx.begin()`"
        .to_owned();
    if let Some(error) = error {
        text = format!("{text}: {}", describe(error));
    }
    Pass::Failed {
        error: text,
        fatal: false,
    }
}

fn unfinished(attempts: u32, last_error: Option<&str>) -> String {
    let last = last_error
        .map(|error| format!("; last error: {error}"))
        .unwrap_or_default();
    format!("handler was started {attempts} times and left no result the last time: its process ended{last}")
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

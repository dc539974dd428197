//! Where a message stands, from its claim to its acknowledgement.
//!
//! A claim, a run of the handler and the conclusion of the run have the same type, so that each
//! step passes on what the step before it found. Invariant: the broker forgets a message only if
//! [`Outcome::is_final`]. Not here: conclusions ([`crate::runtime`]).

use std::time::Duration;

use sea_orm::DbErr;

use crate::handler::describe;

/// Where a message stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The transaction has the claim until it ends: the message may take effect in it.
    Claimed,
    /// As [`Self::Claimed`], for a dead letter whose inbox row was dead, so the message had no
    /// effect.
    Revived,
    /// The message took effect.
    Handled,
    /// The message took effect before. With sequence numbers: this number or a later one is done.
    Duplicate,
    /// The message was dead-lettered before.
    Buried,
    /// The message was dead-lettered now, or its dead letter failed again.
    DeadLettered,
    /// No handler takes the message, or its dead letter is gone.
    Skipped,
    /// Another version of the program handles the message. It goes back to the broker, and no
    /// message here waits for it.
    SentBack { after: Duration },
    /// A shutdown came first.
    Returned,
    /// The message failed before. Its attempt must be counted before the handler runs.
    Uncounted,
    /// Messages before it in its aggregate are missing, from the number `expected` on. `failing`:
    /// one of them failed and will be retried, so there is no gap.
    Early { expected: u64, failing: bool },
    /// The consumer went on without the message. It must not take effect now.
    Late,
    /// Another event took effect under its number: its producer has numbered anew, or there are two
    /// producers. It must not take effect now.
    Taken,
    /// The handler asked for another run after this time.
    Deferred { wait: Duration, error: String },
    /// The run had no effect.
    Failed { error: String, cause: Cause },
    /// The message runs again after this time.
    Retry { after: Duration, reason: Retry },
}

/// Why a run had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The handler failed.
    Handler,
    /// The handler cannot succeed.
    Fatal,
    /// No attempt is left, and the last one reported no result.
    Exhausted { attempts: u32 },
    /// The handler took too long, perhaps because of the database.
    TimedOut,
    /// The database ended the run.
    Interrupted,
    /// The database or the deduplication store did not let the run begin.
    Unavailable,
}

/// Why a message runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It failed, which used up an attempt.
    Failed,
    /// Its handler asked for another run, which uses no attempt.
    Deferred,
    /// It could not run yet, for a reason outside of its handler.
    Postponed,
    /// Messages before it in its aggregate come first. `last`: the last number of the aggregate
    /// that took effect, if it has risen and the next one does not fail.
    Early { last: Option<u64> },
}

impl Outcome {
    pub(crate) fn failed(error: impl Into<String>) -> Self {
        let error = error.into();
        let cause = Cause::Handler;
        Self::Failed { error, cause }
    }

    pub(crate) fn interrupted(error: impl Into<String>) -> Self {
        let error = error.into();
        let cause = Cause::Interrupted;
        Self::Failed { error, cause }
    }

    /// The database or the deduplication store did not let a run begin.
    pub(crate) fn unavailable(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Failed {
            error: describe(error),
            cause: Cause::Unavailable,
        }
    }

    pub(crate) fn postponed(after: Duration) -> Self {
        let reason = Retry::Postponed;
        Self::Retry { after, reason }
    }

    /// `Ok` if the transaction has the claim.
    pub(crate) fn granted(claim: Result<Self, DbErr>) -> Result<(), Self> {
        match claim {
            Ok(Self::Claimed | Self::Revived) => Ok(()),
            Ok(outcome) => Err(outcome),
            Err(error) => Err(Self::unavailable(&error)),
        }
    }

    /// Whether the broker can forget the message.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Handled | Self::Duplicate | Self::Buried | Self::DeadLettered | Self::Skipped
        )
    }

    /// The time after which the message runs again, if it is not final.
    pub(crate) fn after(&self) -> Duration {
        match self {
            Self::Retry { after, .. } | Self::SentBack { after } => *after,
            _ => Duration::ZERO,
        }
    }

    /// Why the message runs again, if it does.
    pub(crate) fn retry(&self) -> Option<Retry> {
        match self {
            Self::Retry { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

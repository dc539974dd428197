//! The state of a message, from its claim to its acknowledgement.
//!
//! Invariant: a message is acknowledged only if [`Outcome::is_final`].

use std::time::Duration;

use sea_orm::DbErr;

use crate::handler::describe;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Claimed,
    /// The inbox claimed the row of a dead letter for a retry; the message had no effect before.
    Revived,
    Handled,
    /// The message was applied. With strategy `sequence`: this or a later number is done.
    Duplicate,
    Buried,
    DeadLettered,
    Skipped,
    /// Another version of the program handles the message. No message of this process waits for it.
    SentBack {
        after: Duration,
    },
    Returned,
    /// The attempt must be counted before the handler runs.
    Uncounted,
    /// Sequences from `expected` on are not applied yet. `failing`: message `expected` has failed
    /// and will be retried.
    Early {
        expected: u64,
        failing: bool,
    },
    /// The consumer continued without the message.
    Late,
    /// Another event was applied under this number: a producer reused the number, or two producers
    /// exist.
    Taken,
    Deferred {
        wait: Duration,
        error: String,
    },
    Failed {
        error: String,
        cause: Cause,
    },
    Retry {
        after: Duration,
        reason: Retry,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Handler,
    Fatal,
    /// No attempt is left, and the last attempt reported no result.
    Exhausted {
        attempts: u32,
    },
    TimedOut,
    Interrupted,
    Unavailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    Failed,
    Deferred,
    Postponed,
    /// `last`: the aggregate's last applied number. Set only if the number has risen since the
    /// previous attempt and the next message is not failing.
    Early {
        last: Option<u64>,
    },
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

    pub(crate) fn granted(claim: Result<Self, DbErr>) -> Result<(), Self> {
        match claim {
            Ok(Self::Claimed | Self::Revived) => Ok(()),
            Ok(outcome) => Err(outcome),
            Err(error) => Err(Self::unavailable(&error)),
        }
    }

    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Handled | Self::Duplicate | Self::Buried | Self::DeadLettered | Self::Skipped
        )
    }

    pub(crate) fn after(&self) -> Duration {
        match self {
            Self::Retry { after, .. } | Self::SentBack { after } => *after,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn retry(&self) -> Option<Retry> {
        match self {
            Self::Retry { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

//! Settings of a log relay.

use std::time::Duration;

use outbox_core::RelayError;

/// The settings of the log of a [`LogRelay`](crate::LogRelay).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogConfig {
    /// Maximum payload bytes in memory of messages that are not yet published or pending, exceeded
    /// by at most one message. `PostgresLog` buffers up to 32 more messages of up to 8 MiB each.
    /// The maximum must be more than 0; default 64 MiB.
    pub window_bytes: usize,
    /// Maximum bytes that the log retains on the database's disk. While the log retains more, each
    /// read message becomes pending: the table relay publishes it. Default 1 GiB.
    pub retained_max: u64,
    /// The interval of storing the position. After a crash, messages after the position are
    /// published again.
    #[doc(hidden)]
    pub checkpoint_every: Duration,
    /// Maximum number of messages in memory that are not yet published or pending.
    #[doc(hidden)]
    pub window: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            window_bytes: 64 << 20,
            retained_max: 1 << 30,
            checkpoint_every: Duration::from_secs(1),
            window: 10_000,
        }
    }
}

impl LogConfig {
    outbox_core::__setters! {
        window_bytes: usize,
        retained_max: u64,
        #[doc(hidden)]
        checkpoint_every: Duration,
        #[doc(hidden)]
        window: usize,
    }

    pub(super) fn check(&self) -> Result<(), RelayError> {
        if self.window_bytes == 0 {
            return Err(RelayError::Config(
                "window_bytes of the log is 0; use at least 1".to_owned(),
            ));
        }
        Ok(())
    }
}

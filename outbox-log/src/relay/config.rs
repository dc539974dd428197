//! The settings of a log relay.

use std::time::Duration;

use outbox_core::RelayError;

/// The settings of the log of a [`LogRelay`](crate::LogRelay).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogConfig {
    /// The interval of checkpoints, which store the position. After a crash, the messages since the
    /// last checkpoint are published again. 10 ms to 60 s, default 1 s.
    pub checkpoint_every: Duration,
    /// The most undecided messages in memory. At least 1, default 10,000.
    pub window: usize,
    /// The most bytes of payloads of undecided messages in memory, exceeded by one message at most.
    /// In addition the reader buffers messages: `PostgresLog` up to 32 messages of up to 8 MiB
    /// each. Default 64 MiB.
    pub window_bytes: usize,
    /// While the log keeps more bytes of the database's disk than this, the table adopts each read
    /// message. Default 1 GiB.
    pub retained_max: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            checkpoint_every: Duration::from_secs(1),
            window: 10_000,
            window_bytes: 64 << 20,
            retained_max: 1 << 30,
        }
    }
}

impl LogConfig {
    outbox_core::__setters! {
        checkpoint_every: Duration,
        window: usize,
        window_bytes: usize,
        retained_max: u64,
    }

    pub(super) fn check(&self) -> Result<(), RelayError> {
        let every = self.checkpoint_every.as_millis();
        if !(10..=60_000).contains(&every) {
            return Err(RelayError::Config(format!(
                "checkpoint_every is {:?}; use 10 ms to 60 s",
                self.checkpoint_every
            )));
        }
        if self.window == 0 || self.window_bytes == 0 {
            return Err(RelayError::Config(
                "window or window_bytes of the log is 0; use at least 1".to_owned(),
            ));
        }
        Ok(())
    }
}

//! Settings and use of a stream.

use std::time::Duration;

use crate::admin::next::{Command, Next};
use crate::admin::words::quoted;

/// Advice for removing a limit per subject. nats-server rejects a change of only one setting.
pub const WITHOUT_LIMIT_PER_SUBJECT: &str =
    "set discard_new_per_subject to false and max_msgs_per_subject to -1 at once";

/// The `nats stream edit` flag for a doubled limit: `doubled("max-msgs", 5)` is `--max-msgs=10`.
pub fn doubled(option: &str, most: u64) -> String {
    format!("--{option}={}", most.saturating_mul(2))
}

/// Outbox settings for stream checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Retention of published messages in the outbox; `None`: forever.
    pub retention: Option<Duration>,
}

/// Settings and use of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Stream name.
    pub name: String,
    /// Whether the retention policy is `limits`.
    pub keeps_what_was_read: bool,
    /// Duplicate window.
    pub duplicate_window: Duration,
    /// Maximum message age; `None`: unlimited.
    pub max_age: Option<Duration>,
    /// Size limit in bytes; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Limit of messages; `None`: no limit.
    pub max_messages: Option<u64>,
    /// Stored messages.
    pub messages: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether a full stream drops old messages.
    pub drops_oldest: bool,
    /// Limit of messages per subject; `None`: no limit.
    pub max_messages_per_subject: Option<u64>,
    /// Whether a full subject rejects new messages.
    pub refuses_per_subject: bool,
    /// Memory storage.
    pub is_in_memory: bool,
    /// Number of replicas.
    pub replicas: usize,
    /// Clustered server.
    pub is_clustered: bool,
    /// Largest accepted message in bytes, with headers.
    pub message_bytes: usize,
    /// Server version.
    pub version: String,
    /// Whether the server is 2.9 or newer.
    pub is_supported: bool,
}

impl StreamFacts {
    pub(crate) fn reached(&self) -> Option<(String, String)> {
        let Self { messages, bytes, .. } = *self;
        if let Some(most) = self.max_messages.filter(|most| messages >= *most) {
            return Some((
                format!("{messages} of {most} messages"),
                doubled("max-msgs", most),
            ));
        }
        let is_full = |most: &u64| {
            let room = most.saturating_sub(bytes);
            bytes.checked_div(messages).is_some_and(|size| room < size)
        };
        let most = self.max_bytes.filter(is_full)?;
        Some((format!("{bytes} of {most} bytes"), doubled("max-bytes", most)))
    }

    pub(crate) fn edit(&self, flags: &str) -> Command {
        Command::new(format!("nats stream edit {} {flags}", quoted(&self.name)))
    }

    pub(super) fn unlimit_subjects(&self) -> Next {
        match self.refuses_per_subject {
            true => Next::and_advice(self.edit("--interactive"), WITHOUT_LIMIT_PER_SUBJECT),
            false => self.edit("--max-msgs-per-subject=-1").into(),
        }
    }
}

//! What the rules about streams go by.

use std::time::Duration;

use crate::words::quoted;

/// What the server says of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its name.
    pub name: String,
    /// Whether it keeps messages until a limit, whether they were read or not.
    pub keeps_what_was_read: bool,
    /// The time in which a second copy is dropped.
    pub duplicate_window: Duration,
    /// The age at which messages are deleted; `None` for never.
    pub max_age: Option<Duration>,
    /// Its most bytes; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Its most messages; `None` for no limit.
    pub max_messages: Option<u64>,
    /// Messages that it holds.
    pub messages: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Whether a full stream drops its oldest messages, and does not refuse.
    pub drops_oldest: bool,
    /// Messages that it keeps per subject; `None` for no limit.
    pub max_messages_per_subject: Option<u64>,
    /// Whether it is in memory only.
    pub is_in_memory: bool,
    /// Copies of it.
    pub replicas: usize,
    /// Whether its server is one of several.
    pub is_clustered: bool,
    /// The largest message that server and stream take, with its headers.
    pub message_bytes: usize,
    /// The version of the server.
    pub version: String,
    /// Whether that is 2.9 or newer.
    pub is_supported: bool,
}

impl StreamFacts {
    /// The command that changes settings of the stream.
    pub(super) fn edit(&self, flags: &str) -> String {
        format!("nats stream edit {} {flags}", quoted(&self.name))
    }
}

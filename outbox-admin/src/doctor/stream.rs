//! What the rules about streams go by.

use std::time::Duration;

use crate::next::{Command, Next};
use crate::words::quoted;

/// How to remove a limit per subject that refuses. A server rejects the removal of one setting without the other.
pub const WITHOUT_LIMIT_PER_SUBJECT: &str =
    "set discard_new_per_subject to false and max_msgs_per_subject to -1 at once";

/// What the outbox is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// How long published messages are kept; `None` if for ever.
    pub retention: Option<Duration>,
}

/// What the server says of the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// Whether it refuses further messages of a subject that holds so many, and does not drop the oldest one.
    pub refuses_per_subject: bool,
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
    pub(super) fn edit(&self, flags: &str) -> Command {
        Command::new(format!("nats stream edit {} {flags}", quoted(&self.name)))
    }

    /// The command that takes the limit per subject away.
    pub(super) fn unlimit_subjects(&self) -> Next {
        match self.refuses_per_subject {
            true => Next::and_advice(self.edit("--interactive"), WITHOUT_LIMIT_PER_SUBJECT),
            false => self.edit("--max-msgs-per-subject=-1").into(),
        }
    }
}

//! How the log of a log relay stands, for whoever shows it.
//!
//! Not here: who reads it, see `outbox-log`.

use std::time::Duration;

use serde::Serialize;

use crate::serial;
use crate::verdict::Reason;

/// How the log stands from which a log relay publishes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LogView {
    /// The replication slot.
    pub name: String,
    /// Whether new messages are the log's.
    pub is_on: bool,
    /// Whether there is the slot.
    pub exists: bool,
    /// Whether a relay reads it.
    pub is_read: bool,
    /// The position in the database's log up to which everything is published or the table's.
    pub stored: Option<u64>,
    /// How long ago it was stored.
    #[serde(rename = "stored_seconds_ago", serialize_with = "serial::seconds_if_any")]
    pub stored_ago: Option<Duration>,
    /// Messages that may not be published. Counting stops at 10,000.
    pub undecided: u64,
    /// How long ago the oldest of them was recorded.
    #[serde(
        rename = "oldest_undecided_seconds",
        serialize_with = "serial::seconds_if_any"
    )]
    pub oldest_undecided: Option<Duration>,
    /// Bytes that the server has written to its log behind what is decided, for whatever table.
    pub behind_bytes: Option<u64>,
    /// Bytes of the server's disk that the slot keeps.
    pub retained_bytes: Option<u64>,
    /// Bytes that may still be written before the server gives the slot up; `None` if it never does.
    pub safe_bytes: Option<u64>,
    /// What is wrong with it.
    pub reason: Option<Reason>,
}

//! How the log of a relay stands, for health checks and people.

use super::{Position, Retained};

/// How the log of a [`LogRelay`](super::LogRelay) stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogStatus {
    /// This relay reads the log.
    pub reads: bool,
    /// Another relay reads the log.
    pub stands_by: bool,
    /// Everything up to here is decided, in the present reading.
    pub decided: Position,
    /// Messages in memory that were read and are not decided.
    pub undecided: usize,
    /// More than [`PENDING_MAX`](super::PENDING_MAX) messages are pending in the table. The relay of the log publishes nothing until there are fewer.
    pub waits_for_table: bool,
    /// How much of the database's disk the log keeps, when it was last asked.
    pub retained: Option<Retained>,
    /// The log keeps too much, so the table adopts what is read.
    pub adopts: bool,
}

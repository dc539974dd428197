//! Obstacles that a preflight finds, each with its kind and its repair.
//!
//! Invariant: callers decide by the kind, and the texts are for people only.

use std::fmt;

/// A condition that an operator has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupProblem {
    /// The kind of the condition.
    pub kind: SetupKind,
    /// What was seen.
    pub seen: String,
    /// What to do, often a statement; empty if `seen` ends with it.
    pub repair: String,
}

/// The kind of a [`SetupProblem`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupKind {
    /// The server refuses user, password or database.
    Login,
    /// There is no trusted TLS connection.
    Tls,
    /// The server's version or engine is not supported.
    Version,
    /// A table, a column or a row of this version is missing.
    Tables,
    /// The table of leases lacks rows of partitions.
    Leases,
    /// The login lacks rights.
    Rights,
    /// Row-level security hides the rows of these tables from the login.
    RowSecurity(Vec<String>),
    /// A setting or the state of the server or of the database.
    Setting,
    /// A polling relay gets no new messages, because the log has them. A relay that reads the log
    /// expects this.
    LeftToLog,
    /// The log that a relay is to read is not set up.
    LogMissing,
    /// A replication slot waits for open transactions.
    OpenTransactions,
    /// The call does not fit the operation.
    Operation,
}

impl SetupProblem {
    /// A problem of this kind.
    pub fn new(kind: SetupKind, seen: impl Into<String>, repair: impl Into<String>) -> Self {
        Self {
            kind,
            seen: seen.into(),
            repair: repair.into(),
        }
    }
}

impl fmt::Display for SetupProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repair.as_str() {
            "" => f.write_str(&self.seen),
            repair => write!(f, "{}; {repair}", self.seen),
        }
    }
}

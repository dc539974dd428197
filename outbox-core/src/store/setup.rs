//! Setup problems that a preflight reports.
//!
//! Invariant: callers decide by the kind; the texts are for people only.

use std::fmt;

/// A condition that an operator has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupProblem {
    /// The kind of the condition.
    pub kind: SetupKind,
    /// The observation, for people.
    pub seen: String,
    /// The repair, often a statement.
    pub repair: String,
}

/// The kind of a [`SetupProblem`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupKind {
    /// The server rejects user, password or database.
    Login,
    /// No trusted TLS connection is possible.
    Tls,
    /// Server version or engine is not supported.
    Version,
    /// A table, column or row is missing.
    Tables,
    /// The lease table lacks rows for some partitions.
    Leases,
    /// The login lacks privileges.
    Rights,
    /// Row-level security hides rows of these tables.
    RowSecurity(Vec<String>),
    /// A setting or state of server or database.
    Setting,
    /// A polling relay gets no new messages, because they go to the log.
    LeftToLog,
    /// The log is not set up.
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

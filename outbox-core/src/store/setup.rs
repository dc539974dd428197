//! Setup problems that a preflight reports.
//!
//! Invariant: programs decide by [`SetupKind`]; the texts are for people only.

use std::fmt;

/// A problem for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupProblem {
    /// The problem's kind.
    pub kind: SetupKind,
    /// Observation, for people.
    pub seen: String,
    /// Repair, often a statement.
    pub repair: String,
}

/// Kind of [`SetupProblem`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupKind {
    /// Rejected user, password or database.
    Login,
    /// No trusted TLS connection to the server.
    Tls,
    /// Unsupported server version or engine.
    Version,
    /// A table, column or row of the outbox is missing.
    Tables,
    /// Lease rows are missing.
    Leases,
    /// The login lacks privileges.
    Rights,
    /// Row-level security hides rows of these tables.
    RowSecurity(Vec<String>),
    /// Wrong setting or state of server or database.
    Setting,
    /// A polling relay gets no new messages, because writers record to the database log.
    LeftToLog,
    /// Missing database log.
    LogMissing,
    /// A replication slot waits for open transactions.
    OpenTransactions,
    /// The kind of the operation does not fit the called method.
    Operation,
}

impl SetupProblem {
    /// A new problem.
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

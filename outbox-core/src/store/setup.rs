//! Setup problems that a preflight reports.
//!
//! Invariant: programs decide by [`SetupKind`]; the texts are for people only.

use std::fmt;

/// A problem that an operator must repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupProblem {
    /// The kind of the condition.
    pub kind: SetupKind,
    /// What the preflight observed, for people.
    pub seen: String,
    /// How to repair the problem, often an SQL statement.
    pub repair: String,
}

/// Kind of [`SetupProblem`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupKind {
    /// The server rejected user, password or database.
    Login,
    /// No trusted TLS connection to the server.
    Tls,
    /// The server's version or engine is not supported.
    Version,
    /// A table, column or row of the outbox is missing.
    Tables,
    /// Lease rows are missing.
    Leases,
    /// The login lacks privileges.
    Rights,
    /// Row-level security hides rows of these tables.
    RowSecurity(Vec<String>),
    /// A setting or state of server or database is wrong.
    Setting,
    /// A polling relay gets no new messages, because writers record to the database log.
    LeftToLog,
    /// The database log does not exist.
    LogMissing,
    /// A replication slot waits for open transactions.
    OpenTransactions,
    /// The operation's kind does not fit the call.
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

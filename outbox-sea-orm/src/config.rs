//! The settings of recording: table names and limits. The defaults suit most services.

use outbox_core::Limits;

use crate::names::TableNames;
use crate::names::usage;

/// The tables in which events are recorded, and the limits of their messages.
///
/// The relay's [`SqlStore`](crate::SqlStore) must be given the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxConfig {
    /// Names of the tables. Default: `outbox_messages` and so on, on the connection's search path.
    pub names: TableNames,
    /// Bounds on payload and headers. Default: [`Limits::default`].
    pub limits: Limits,
}

impl OutboxConfig {
    /// Sets the names of the tables.
    ///
    /// From then on these names count as in use in this process: see [`RecordError::DefaultNames`](crate::RecordError::DefaultNames).
    #[must_use]
    pub fn with_names(mut self, names: TableNames) -> Self {
        usage::note(&names);
        self.names = names;
        self
    }

    /// Sets the bounds on payload and headers.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

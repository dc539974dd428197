//! What recording needs to know: table names and limits. The defaults suit most services.

use outbox_core::Limits;

use crate::names::TableNames;

/// Where and within which limits events are recorded.
///
/// The relay's [`SqlStore`](crate::SqlStore) must be given the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxConfig {
    /// Names of the tables. Default: `outbox_messages` and so on, in the connection's schema.
    pub names: TableNames,
    /// Bounds on payload and headers. Default: [`Limits::default`].
    pub limits: Limits,
}

impl OutboxConfig {
    /// Sets the names of the tables.
    #[must_use]
    pub fn with_names(mut self, names: TableNames) -> Self {
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

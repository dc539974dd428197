//! Settings for recording events.

use outbox_core::Limits;

use crate::names::TableNames;
use crate::names::usage;

/// Table names and message limits. The relay's [`SqlStore`](crate::SqlStore) needs the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxConfig {
    /// Table names. Default: `outbox_messages` and so on, on the search path.
    pub names: TableNames,
    /// Limits of payload and headers. Default: [`Limits::default`].
    pub limits: Limits,
}

impl OutboxConfig {
    /// Sets the table names, and marks them as used by this process: see
    /// [`RecordError::DefaultNames`](crate::RecordError::DefaultNames).
    #[must_use]
    pub fn with_names(mut self, names: TableNames) -> Self {
        usage::note(&names);
        self.names = names;
        self
    }

    /// Sets the limits of payload and headers.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

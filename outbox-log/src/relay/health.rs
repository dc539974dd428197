//! Health of a log relay and its log.

use std::sync::Arc;

use outbox_core::log::{Position, Retained};
use outbox_core::{Health, HealthCheck};

use super::shared::Shared;

/// The health of a log relay, for probes. Clones report on the same relay.
#[derive(Debug, Clone)]
pub struct LogHealthCheck {
    pub(super) table: HealthCheck,
    pub(super) log: HealthCheck,
    pub(super) shared: Arc<Shared>,
}

impl LogHealthCheck {
    /// The current health of the log relay, including its table relay. A standby relay is healthy.
    #[must_use]
    pub fn now(&self) -> Health {
        let status = self.status();
        let mut reasons = Vec::new();
        if status.adopts {
            let bytes = status.retained.unwrap_or_default().bytes;
            reasons.push(format!(
                "the log retains {bytes} bytes of the database's disk; messages are published from the table until it retains less"
            ));
        }
        if status.waits_for_table {
            reasons.push("the log waits until the table has fewer pending messages".to_owned());
        }
        let of_disk = match reasons.is_empty() {
            true => Health::Alive,
            false => Health::Degraded { reasons },
        };
        let parts = [
            ("table", self.table.now()),
            ("log", self.log.now()),
            ("log", of_disk),
        ];
        Health::together(parts)
    }

    /// The state of the log.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        self.shared.status()
    }
}

/// The state of the log of a [`LogRelay`](crate::LogRelay).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogStatus {
    /// Whether this relay reads the log.
    pub reads: bool,
    /// Whether another relay reads the log.
    pub stands_by: bool,
    /// Position in the log: all earlier messages that this relay has read are published or pending.
    pub decided: Position,
    /// Number of messages in memory that are not yet published or pending.
    pub undecided: usize,
    /// Whether more than [`PENDING_MAX`](outbox_core::log::PENDING_MAX) messages are pending in the
    /// table. The relay of the log publishes nothing until the table has fewer pending messages.
    pub waits_for_table: bool,
    /// Disk that the log retained on the database server at the last query.
    pub retained: Option<Retained>,
    /// Whether each read message becomes pending in the table, because the log retains too much
    /// disk.
    pub adopts: bool,
}

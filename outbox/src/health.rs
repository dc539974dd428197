//! The combined health of all relays and inboxes of a process.

use outbox_core::{Health, HealthCheck};
use outbox_inbox::InboxHealthCheck;
#[cfg(feature = "log")]
use outbox_log::LogHealthCheck;

/// The health of the relays and inboxes of a [`Runner`](crate::Runner), from
/// [`Runner::health`](crate::Runner::health). Reading it never waits. All clones return the same
/// health.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunnerHealth {
    /// One per relay, in the order in which the relays were added.
    pub relays: Vec<HealthCheck>,
    /// One per log relay, in the order in which they were added.
    #[cfg(feature = "log")]
    pub log_relays: Vec<LogHealthCheck>,
    /// One per inbox, in the order in which the inboxes were added.
    pub inboxes: Vec<InboxHealthCheck>,
}

impl RunnerHealth {
    /// The current combined health: the worst of all parts ([`Health::together`]). Each reason
    /// names its relay or inbox by number, counted from 1 in the order in which they were added.
    #[must_use]
    pub fn now(&self) -> Health {
        let named = |kind| move |(index, health)| (format!("{kind} {}", index + 1), health);
        let relays = self.relays.iter().map(HealthCheck::now).enumerate();
        let parts = relays.map(named("relay"));
        #[cfg(feature = "log")]
        let parts = {
            let log_relays = self.log_relays.iter().map(LogHealthCheck::now).enumerate();
            parts.chain(log_relays.map(named("log relay")))
        };
        let inboxes = self.inboxes.iter().map(InboxHealthCheck::now).enumerate();
        Health::together(parts.chain(inboxes.map(named("inbox"))))
    }
}

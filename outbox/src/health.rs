//! The combined health of a process.

use outbox_core::{Health, HealthCheck};
use outbox_inbox::InboxHealthCheck;
#[cfg(feature = "log")]
use outbox_log::LogHealthCheck;

/// The health of a [`Runner`](crate::Runner)'s relays and inboxes, from
/// [`Runner::health`](crate::Runner::health). Reading the health never waits. All clones return the
/// same health.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunnerHealth {
    /// Health of the relays, in order of addition.
    pub relays: Vec<HealthCheck>,
    /// Health of the log relays, in order of addition.
    #[cfg(feature = "log")]
    pub log_relays: Vec<LogHealthCheck>,
    /// Health of the inboxes, in order of addition.
    pub inboxes: Vec<InboxHealthCheck>,
}

impl RunnerHealth {
    /// The worst health of all parts ([`Health::together`]). Each reason names its relay or inbox
    /// by number, counted from 1 in order of addition.
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

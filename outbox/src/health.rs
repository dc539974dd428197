//! How the relays and inboxes of a process are doing, as one answer.
//!
//! Not here: how each of them finds its own verdict, see [`HealthCheck`] and [`InboxHealthCheck`].

use outbox_core::{Health, HealthCheck};
use outbox_inbox::InboxHealthCheck;

/// Answers for the relays and inboxes of a [`Runner`](crate::Runner), without waiting for them. Clones are alike; see
/// [`Runner::health`](crate::Runner::health).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunnerHealth {
    /// Of each relay, in the order in which they were added.
    pub relays: Vec<HealthCheck>,
    /// Of each inbox, in the order in which they were added.
    pub inboxes: Vec<InboxHealthCheck>,
}

impl RunnerHealth {
    /// How they are doing now: [`Health::Stuck`] if one of them is, otherwise [`Health::Degraded`] if one of them is. Each reason names its relay or inbox, by number
    /// from 1 in the order in which they were added.
    #[must_use]
    pub fn now(&self) -> Health {
        let relays = self.relays.iter().map(HealthCheck::now);
        let inboxes = self.inboxes.iter().map(InboxHealthCheck::now);
        let named = |kind| move |(index, health)| (format!("{kind} {}", index + 1), health);
        let relays = relays.enumerate().map(named("relay"));
        Health::together(relays.chain(inboxes.enumerate().map(named("inbox"))))
    }
}

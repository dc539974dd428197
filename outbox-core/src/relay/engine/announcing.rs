//! What the relay announces of itself with each renewal.

use super::Engine;
use crate::publisher::Publisher;
use crate::store::{Announcement, OutboxStore};

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    /// The present fitness and trouble, of both halves of a log relay.
    pub(super) fn announcement(&self) -> Announcement {
        let (fitness, trouble) = (self.checkup.fitness(), self.relay.health.trouble());
        let (fitness, trouble) = match &self.relay.beside_log {
            Some(log) => log.together(fitness, trouble),
            None => (fitness, trouble),
        };
        Announcement {
            fitness,
            registration: self.registration.clone(),
            trouble,
        }
    }
}

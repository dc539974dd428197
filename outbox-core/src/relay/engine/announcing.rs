//! What the relay announces of itself with each renewal.

use super::Engine;
use crate::publisher::Publisher;
use crate::store::{Announcement, OutboxStore};

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    /// The present fitness and trouble, of both relays if there is a second source.
    pub(super) fn announcement(&self) -> Announcement {
        let (fitness, trouble) = (self.checkup.fitness(), self.relay.health.trouble());
        let (fitness, trouble) = self.relay.part.announced(fitness, trouble);
        Announcement {
            fitness,
            registration: self.registration.clone(),
            trouble,
        }
    }
}

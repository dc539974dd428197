//! The durable consumers of the stream, which of them are handed a message once it is published, and what their inboxes remember. Nothing is published or received.

use outbox::core::{EventId, Message, describe};
use outbox::nats::{DurableFilters, JetStreamPublisher};
use outbox_admin::{EffectRow, Handed};

use super::arguments::PlaceArguments;
use super::place::Place;
use super::timeline;
use crate::failure::CommandError;
use crate::output::say;

/// The durable consumers of a stream at a moment.
pub(super) struct Takers<'a> {
    publisher: &'a JetStreamPublisher,
    durables: Vec<DurableFilters>,
}

impl<'a> Takers<'a> {
    /// Asks which there are. An error is a text for people.
    pub(super) async fn ask(place: &Place, publisher: &'a JetStreamPublisher) -> Result<Self, String> {
        let durables = tokio::time::timeout(place.timeout, publisher.durable_filters()).await;
        let durables = durables.map_err(|_| format!("no answer within {:?}", place.timeout))?;
        Ok(Self {
            publisher,
            durables: durables.map_err(|error| describe(&error))?,
        })
    }

    /// All of them.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.durables.iter().map(|durable| durable.consumer.clone());
        names.collect()
    }

    /// Those that are handed a message.
    pub(super) fn of(&self, message: &Message) -> Vec<String> {
        let are_handed = |durable: &&DurableFilters| self.publisher.would_hand(durable, message);
        let takers = self.durables.iter().filter(are_handed);
        takers.map(|durable| durable.consumer.clone()).collect()
    }
}

/// What the inboxes of those that are handed something hold about events, in the databases of all outboxes of the configuration. `None` if one could not be looked at,
/// which people are told.
pub(super) async fn remembered(
    place: &Place,
    arguments: &PlaceArguments,
    handed: &Handed,
    events: &[EventId],
) -> Option<Vec<EffectRow>> {
    let takers = handed.takers();
    if takers.is_empty() {
        return Some(Vec::new());
    }
    let places = match timeline::everywhere(arguments).await {
        Ok(places) => places,
        // Another outbox of the file, which the change has nothing to do with.
        Err(CommandError::Configuration(error) | CommandError::Failed(error)) => {
            say(&unknown(format!("inboxes: {error}")));
            return None;
        }
    };
    let (rows, unseen) = timeline::rows(place, &places, &takers, events).await;
    for unseen in &unseen {
        say(&unknown(unseen));
    }
    unseen.is_empty().then_some(rows)
}

/// The sentence about what could not be looked at.
pub(super) fn unknown(unseen: impl std::fmt::Display) -> String {
    format!("which consumers would take effect is not known: {unseen}")
}

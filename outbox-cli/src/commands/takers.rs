//! The durable consumers of the stream, which of them are handed a message once it is published, and what their inboxes remember. Nothing is published or received.

use outbox::core::{EventId, Message, describe};
use outbox::nats::JetStreamPublisher;
use outbox_admin::web::Takers;
use outbox_admin::{EffectRow, Handed, unforeseen};

use super::arguments::PlaceArguments;
use super::place::Place;
use super::timeline;
use crate::failure::CommandError;
use crate::output::say;

/// Asks which consumers there are, and what their filters take. An error is a text for people.
pub(super) async fn ask(place: &Place, publisher: &JetStreamPublisher) -> Result<Takers, String> {
    let durables = tokio::time::timeout(place.timeout, publisher.durable_filters()).await;
    let durables = durables.map_err(|_| format!("no answer within {:?}", place.timeout))?;
    let durables = durables.map_err(|error| describe(&error))?;
    let names = durables.iter().map(|durable| durable.consumer.clone());
    let consumers: Vec<String> = names.collect();
    let publisher = publisher.clone();
    let of = move |message: &Message| -> Vec<String> {
        let are_handed = durables
            .iter()
            .filter(|durable| publisher.would_hand(durable, message));
        are_handed.map(|durable| durable.consumer.clone()).collect()
    };
    Ok(Takers {
        consumers,
        of: Box::new(of),
    })
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
            say(&unforeseen(format!("inboxes: {error}")));
            return None;
        }
    };
    let (rows, unseen) = timeline::rows(place, &places, &takers, events).await;
    for unseen in &unseen {
        say(&unforeseen(unseen));
    }
    unseen.is_empty().then_some(rows)
}

//! The consumers of a message that is on the stream, with what their inboxes say of its event. Nothing is received or changed.

use outbox::core::{Message, describe};
use outbox::nats::async_nats::Client;
use outbox::nats::{JetStreamPublisher, StreamReading};
use outbox_admin::{Reader, Readers, earlier_events};

use super::place::Place;
use super::{stream, timeline};
use crate::failure::CommandError;

/// Reads the inboxes in the databases of all `places` with the stream of this one.
pub(super) async fn of(
    place: &Place,
    places: &[Place],
    (client, publisher): (Client, &JetStreamPublisher),
    message: &Message,
) -> Result<Readers, String> {
    let readings = tokio::time::timeout(place.timeout, publisher.readings_of(message)).await;
    let readings = readings.map_err(|_| format!("no answer within {:?}", place.timeout))?;
    let mut readers: Vec<Reader> = readings
        .map_err(|error| describe(&error))?
        .into_iter()
        .map(reader)
        .collect();
    if readers.is_empty() {
        return Ok(Readers::default());
    }
    let mut events = vec![message.event_id];
    let mut unseen = Vec::new();
    match place.ask(earlier_events(&place.store, message)).await {
        Ok(earlier) => events.extend(earlier),
        Err(CommandError::Configuration(error) | CommandError::Failed(error)) => {
            unseen.push(format!("earlier events of its aggregate: {error}"));
        }
    }
    let view = timeline::inboxes(place, places, client.clone(), &events).await;
    unseen.extend(view.unseen);
    // Without a row of a pause, a paused consumer is one of which no process asks for messages.
    if readers.iter().any(|reader| !reader.is_receiving)
        && let Ok(consumers) = stream::consumers_of(place, client)
    {
        let names: Vec<String> = readers.iter().map(|reader| reader.consumer.clone()).collect();
        let rows = place.ask(outbox_admin::consumers(&consumers, names)).await;
        for row in rows.unwrap_or_default() {
            let is_it = |reader: &&mut Reader| reader.consumer == row.consumer;
            if let Some(reader) = readers.iter_mut().find(is_it) {
                reader.paused = row.paused;
            }
        }
    }
    Ok(Readers {
        readers,
        rows: view.rows,
        unseen,
    })
}

fn reader(reading: StreamReading) -> Reader {
    Reader {
        consumer: reading.consumer,
        delivered: reading.delivered,
        floor: reading.floor,
        unacknowledged: reading.unacknowledged,
        is_receiving: reading.is_receiving,
        paused: None,
    }
}

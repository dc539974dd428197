//! Consumers of a message on the stream, with their inbox rows.

use crate::admin::{Numbers, Reader, Readers, answered, earlier_events};
use outbox::core::{Message, describe};
use outbox::nats::async_nats::Client;
use outbox::nats::{JetStreamPublisher, StreamReading};

use super::place::Place;
use super::stream;
use super::stream_view::inboxes;

/// For a message and its stream sequence, reads the inboxes of all outboxes in the file that
/// publish to the same stream.
pub(super) async fn of(
    place: &Place,
    places: &[Place],
    (client, publisher): (Client, &JetStreamPublisher),
    (message, stream_sequence): (&Message, u64),
) -> Result<Readers, String> {
    let readings = async {
        publisher
            .readings_of(message)
            .await
            .map_err(|error| describe(&error))
    };
    let readings = answered(place.timeout, readings).await?;
    let mut readers: Vec<Reader> = readings.into_iter().map(reader).collect();
    if readers.is_empty() {
        return Ok(Readers::default());
    }
    let mut events = vec![message.event_id];
    let mut unseen = Vec::new();
    let mut earlier = Vec::new();
    match place.ask(earlier_events(&place.store, message)).await {
        Ok(found) => earlier = found,
        Err(error) => {
            unseen.push(format!("earlier events of its aggregate: {error}"));
        }
    }
    events.extend(earlier.iter().map(|(event, _)| *event));
    let view = inboxes(place, places, client.clone(), &events).await;
    // The consumer's last sequences are read only for delivered messages without an inbox row,
    // because other messages do not need them.
    let has_row = |reader: &Reader| {
        let mut rows = view.rows.iter();
        rows.any(|row| row.effect.consumer == reader.consumer && row.event_id == message.event_id)
    };
    let open = |reader: &&mut Reader| reader.delivered >= stream_sequence && !has_row(reader);
    let open: Vec<&mut Reader> = readers.iter_mut().filter(open).collect();
    let uncounted = count(
        place,
        places,
        (client.clone(), publisher),
        (message, stream_sequence),
        open,
    )
    .await;
    // Sequences and inbox rows come from the same databases. If `view.unseen` has entries, it
    // already contains the error of the sequences.
    if view.unseen.is_empty() {
        unseen.extend(uncounted);
    }
    unseen.extend(view.unseen);
    if readers.iter().any(|reader| !reader.is_receiving)
        && let Ok(consumers) = stream::consumers_of(place, client)
    {
        let names: Vec<String> = readers.iter().map(|reader| reader.consumer.clone()).collect();
        let rows = place.ask(crate::admin::consumers(&consumers, names)).await;
        for row in rows.unwrap_or_default() {
            let is_it = |reader: &&mut Reader| reader.consumer == row.consumer;
            if let Some(reader) = readers.iter_mut().find(is_it) {
                reader.paused = row.paused;
            }
        }
    }
    Ok(Readers {
        readers,
        earlier,
        rows: view.rows,
        unseen,
    })
}

/// Adds the last sequence of each consumer with strategy `sequence`, only for the message's source:
/// other services may use the same aggregate name. Returns errors of inboxes that could not be
/// read.
async fn count(
    place: &Place,
    places: &[Place],
    (client, publisher): (Client, &JetStreamPublisher),
    (message, stream_sequence): (&Message, u64),
    mut readers: Vec<&mut Reader>,
) -> Vec<String> {
    let (mut positions, mut unseen) = (Vec::new(), Vec::new());
    if message.sequence.is_none() || readers.is_empty() {
        return unseen;
    }
    let names: Vec<String> = readers.iter().map(|reader| reader.consumer.clone()).collect();
    for other in places {
        let found = match stream::consumers_of(other, client.clone()) {
            Ok(consumers) => other.ask(consumers.positions(&names, &message.aggregate)).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => positions.extend(found),
            Err(error) => {
                unseen.push(format!("consumers with strategy `sequence`: {error}"));
            }
        }
    }
    if positions.is_empty() {
        return unseen;
    }
    let source = async {
        let source = publisher.source_of(message, stream_sequence).await;
        source.map_err(|error| describe(&error))
    };
    let source = answered(place.timeout, source).await.unwrap_or_else(|error| {
        unseen.push(format!("consumers with strategy `sequence`: {error}"));
        None
    });
    for position in positions {
        if Some(&position.source) != source.as_ref() {
            continue;
        }
        let is_it = |reader: &&mut &mut Reader| reader.consumer == position.consumer;
        let Some(reader) = readers.iter_mut().find(is_it) else {
            continue;
        };
        if reader.numbers.is_none_or(|known| known.last < position.last) {
            reader.numbers = Some(Numbers {
                last: position.last,
                failing: position.failing,
            });
        }
    }
    unseen
}

fn reader(reading: StreamReading) -> Reader {
    Reader {
        consumer: reading.consumer,
        delivered: reading.delivered,
        floor: reading.floor,
        unacknowledged: reading.unacknowledged,
        max_ack_pending: reading.max_ack_pending,
        is_receiving: reading.is_receiving,
        paused: None,
        numbers: None,
    }
}

//! A look at the outbox, its stream and the consumers.
//!
//! Invariant: what cannot be looked at is named, and does not keep the rest from being seen.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::core::{MessageStatus, Publisher as _, Selection, describe};
use outbox::nats::async_nats::{Client, jetstream};
use outbox_admin::{BlockedRow, BrokerCheck, ConsumerRow, MessageRow, RelayRow, Status};
use tokio::time::Instant;

use super::super::place::Place;
use super::super::stream;
use crate::failure::CommandError;

/// Rows of a list.
const ROWS: std::num::NonZeroU32 = std::num::NonZeroU32::new(200).unwrap();

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) status: Option<Status>,
    pub(super) relays: Vec<RelayRow>,
    pub(super) blocked: Vec<BlockedRow>,
    pub(super) dead: Vec<MessageRow>,
    pub(super) consumers: Vec<ConsumerRow>,
    /// What each consumer has handled per second since the look before.
    pub(super) handled: BTreeMap<String, f64>,
    /// What the stream has stored per second since the look before, of whomever.
    pub(super) stored: Option<f64>,
    /// What could not be looked at.
    pub(super) unseen: Vec<String>,
}

/// Where the stream and its consumers were.
#[derive(Debug)]
struct Positions {
    at: Instant,
    last: u64,
    floors: BTreeMap<String, u64>,
}

/// Looks again and again, over the same connections.
pub(super) struct Sampler {
    place: Place,
    client: Option<Client>,
    before: Option<Positions>,
}

fn text(error: CommandError) -> String {
    let (CommandError::Configuration(failure) | CommandError::Failed(failure)) = error;
    failure.to_string()
}

impl Sampler {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            client: None,
            before: None,
        }
    }

    pub(super) async fn look(&mut self) -> Sample {
        let mut sample = Sample::default();
        let broker = self.broker(&mut sample).await;
        if let Err(error) = self.database(&broker, &mut sample).await {
            sample.unseen.push(text(error));
        }
        sample
    }

    async fn database(&self, broker: &BrokerCheck, sample: &mut Sample) -> Result<(), CommandError> {
        let (place, store) = (&self.place, &self.place.store);
        sample.status = Some(place.ask(outbox_admin::status(store, broker)).await?);
        sample.relays = place.ask(outbox_admin::relays(store)).await?;
        sample.blocked = place.ask(outbox_admin::blocked(store, ROWS)).await?;
        let dead = Selection::all().status(MessageStatus::Dead);
        sample.dead = place.ask(outbox_admin::list(store, &dead, ROWS)).await?;
        Ok(())
    }

    /// Looks at the stream and its consumers.
    async fn broker(&mut self, sample: &mut Sample) -> BrokerCheck {
        let away = |error: String| BrokerCheck::Failed(format!("from here, nats cannot be asked: {error}"));
        let client = match &self.client {
            Some(client) => client.clone(),
            None => match self.place.client().await {
                Ok(client) => self.client.insert(client).clone(),
                Err(error) => return away(error.to_string()),
            },
        };
        let timeout = self.place.timeout;
        match tokio::time::timeout(timeout, self.stream(client, sample)).await {
            Ok(check) => check,
            Err(_) => away(format!("no answer within {timeout:?}")),
        }
    }

    async fn stream(&mut self, client: Client, sample: &mut Sample) -> BrokerCheck {
        let section = &self.place.outbox.section.stream;
        let stream = match section.event_stream() {
            Ok(stream) => stream,
            Err(error) => return BrokerCheck::Failed(describe(&error)),
        };
        match stream::rows(&self.place, client.clone()).await {
            Ok(rows) => sample.consumers = rows,
            Err(error) => sample.unseen.push(text(error)),
        }
        let context = jetstream::new(client.clone());
        let found = context.get_stream(&section.name).await;
        if let Ok(found) = found {
            self.compare(found.cached_info().state.last_sequence, sample);
        }
        match stream.publisher(client).preflight().await {
            Ok(warnings) => BrokerCheck::Checked(warnings),
            Err(error) => BrokerCheck::Failed(describe(&error)),
        }
    }

    /// Says what has moved since the look before.
    fn compare(&mut self, last: u64, sample: &mut Sample) {
        let floor = |row: &ConsumerRow| Some((row.consumer.clone(), row.floor?));
        let now = Positions {
            at: Instant::now(),
            last,
            floors: sample.consumers.iter().filter_map(floor).collect(),
        };
        if let Some(before) = &self.before {
            let elapsed = now.at.saturating_duration_since(before.at);
            sample.stored = rate(before.last, now.last, elapsed);
            for (consumer, floor) in &now.floors {
                let earlier = before.floors.get(consumer);
                if let Some(rate) = earlier.and_then(|earlier| rate(*earlier, *floor, elapsed)) {
                    sample.handled.insert(consumer.clone(), rate);
                }
            }
        }
        self.before = Some(now);
    }
}

/// Steps per second. `None` if the stream was made anew meanwhile, or no time has passed.
#[expect(clippy::cast_precision_loss, reason = "it is shown in whole numbers")]
fn rate(before: u64, now: u64, elapsed: Duration) -> Option<f64> {
    let steps = now.checked_sub(before)?;
    (!elapsed.is_zero()).then(|| steps as f64 / elapsed.as_secs_f64())
}

/// How long a consumer needs until nothing is left, if both go on like this; `None` if it never gets there.
#[expect(clippy::cast_precision_loss, reason = "it is a forecast")]
pub(super) fn caught_up_in(left: u64, handled: f64, stored: f64) -> Option<Duration> {
    let gained = handled - stored;
    // Longer than anybody waits, and than a duration may be, is never.
    let seconds = left as f64 / gained;
    (gained > 0.0 && seconds < 1e9).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_time_and_the_same_stream() {
        assert_eq!(rate(10, 30, Duration::from_secs(2)), Some(10.0));
        assert_eq!(rate(30, 10, Duration::from_secs(2)), None);
        assert_eq!(rate(10, 30, Duration::ZERO), None);
    }

    #[test]
    fn a_consumer_catches_up_if_it_is_faster_than_the_stream() {
        assert_eq!(caught_up_in(100, 15.0, 5.0), Some(Duration::from_secs(10)));
        assert_eq!(caught_up_in(100, 5.0, 5.0), None);
        assert_eq!(caught_up_in(u64::MAX, 5.000_001, 5.0), None);
    }
}

//! A look at the outbox, its stream and the consumers.
//!
//! Invariant: what cannot be looked at is named, and does not keep the rest from being seen.

use std::collections::VecDeque;
use std::time::Duration;

use outbox::core::{MessageStatus, Publisher as _, Selection, describe};
use outbox::nats::async_nats::Client;
use outbox_admin::{
    BlockedRow, BrokerCheck, ConsumerRow, ConsumerSeen, Forecast, MessageRow, RelayRow, Seen, Status,
    StreamUse, forecast,
};
use tokio::time::Instant;

use super::super::log_looks::LogLooks;
use super::super::log_row::LogRow;
use super::super::place::Place;
use super::super::stream;
use crate::failure::CommandError;

/// Rows of a list.
const ROWS: std::num::NonZeroU32 = std::num::NonZeroU32::new(200).unwrap();

/// Looks that are kept: a forecast goes on as between the first of them and the last.
const LOOKS_MAX: usize = 30;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) status: Option<Status>,
    pub(super) relays: Vec<RelayRow>,
    pub(super) blocked: Vec<BlockedRow>,
    pub(super) dead: Vec<MessageRow>,
    pub(super) consumers: Vec<ConsumerRow>,
    /// How the stream is filled.
    pub(super) stream: Option<StreamUse>,
    /// What the stream has stored per second since the look before, of whomever.
    pub(super) stored: Option<f64>,
    /// How the log stands, if there is one.
    pub(super) log: Option<LogRow>,
    /// What is to come, after two looks.
    pub(super) forecast: Option<Forecast>,
    /// What could not be looked at.
    pub(super) unseen: Vec<String>,
}

/// Looks again and again, over the same connections.
pub(super) struct Sampler {
    place: Place,
    client: Option<Client>,
    log: LogLooks,
    looks: VecDeque<(Instant, Seen)>,
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
            log: LogLooks::default(),
            looks: VecDeque::new(),
        }
    }

    pub(super) async fn look(&mut self) -> Sample {
        let mut sample = Sample::default();
        let broker = self.broker(&mut sample).await;
        if let Err(error) = self.database(&broker, &mut sample).await {
            sample.unseen.push(text(error));
        }
        match self.log.look(&self.place).await {
            Ok(log) => sample.log = log.map(LogRow::of),
            Err(error) => sample.unseen.push(format!("the log: {error}")),
        }
        if let (Some(status), Some(next)) = (
            &mut sample.status,
            sample.log.as_ref().and_then(|log| log.next.as_ref()),
        ) {
            status.add(next.state, next.what.as_str(), next.next.clone());
        }
        self.compare(&mut sample);
        sample
    }

    async fn database(&self, broker: &BrokerCheck, sample: &mut Sample) -> Result<(), CommandError> {
        let (place, store) = (&self.place, &self.place.store);
        let mut status = place.ask(outbox_admin::status(store, broker)).await?;
        if let Some(stream) = &sample.stream {
            status.see_stream(stream);
        }
        sample.status = Some(status);
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
            Ok((rows, unseen)) => {
                sample.consumers = rows;
                sample
                    .unseen
                    .extend(unseen.map(|error| format!("dead letters and pauses of consumers: {error}")));
            }
            Err(error) => sample.unseen.push(text(error)),
        }
        sample.stream = stream::filled(&self.place, client.clone()).await.ok();
        match stream.publisher(client).preflight().await {
            Ok(warnings) => BrokerCheck::Checked(warnings),
            Err(error) => BrokerCheck::Failed(describe(&error)),
        }
    }

    /// Says what has moved, and what is to come if it goes on like that.
    fn compare(&mut self, sample: &mut Sample) {
        let backlog = sample.status.as_ref().map(|status| &status.backlog);
        let now = Instant::now();
        let seen = Seen {
            pending: backlog.map(|backlog| (backlog.pending_estimate, backlog.pending_is_exact)),
            stream: sample.stream.clone(),
            consumers: sample.consumers.iter().filter_map(ConsumerSeen::of).collect(),
        };
        if let Some((before, earlier)) = self.looks.back() {
            let sequences = earlier.stream.as_ref().zip(seen.stream.as_ref());
            let passed = now.saturating_duration_since(*before);
            sample.stored =
                sequences.and_then(|(earlier, now)| rate(earlier.last_sequence, now.last_sequence, passed));
        }
        if let Some((first, earlier)) = self.looks.front() {
            sample.forecast = Some(forecast(earlier, &seen, now.saturating_duration_since(*first)));
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back((now, seen));
    }
}

/// Steps per second. `None` if the stream was made anew meanwhile, or no time has passed.
#[expect(clippy::cast_precision_loss, reason = "it is shown in whole numbers")]
fn rate(before: u64, now: u64, elapsed: Duration) -> Option<f64> {
    let steps = now.checked_sub(before)?;
    (!elapsed.is_zero()).then(|| steps as f64 / elapsed.as_secs_f64())
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
}

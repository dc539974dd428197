//! What the sampler has seen in the last hour, for the charts, and in the last minutes, for the forecast.
//!
//! Invariant: bounded memory: 360 points of numbers, and 30 looks with a line for each consumer. Nothing outlives the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::serial;
use crate::{Forecast, Seen, StreamUse, forecast};

/// The time between two points, at the least.
pub(super) const STEP: Duration = Duration::from_secs(10);

/// Points that are kept: those of an hour.
const POINTS_MAX: usize = 360;

/// Looks that are kept: those of five minutes.
const LOOKS_MAX: usize = 30;

/// The numbers of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Point {
    /// By the clock of this machine.
    #[serde(serialize_with = "serial::time")]
    pub(super) at: OffsetDateTime,
    /// Messages to be published.
    pub(super) pending: u64,
    /// Messages that came onto the stream in each second since the point before.
    pub(super) per_second: Option<f64>,
    /// The time that the last of them took from its recording to its place on the stream.
    #[serde(rename = "latency_seconds", serialize_with = "serial::seconds_if_any")]
    pub(super) latency: Option<Duration>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct History {
    points: VecDeque<Point>,
    looks: VecDeque<(Instant, Seen)>,
}

impl History {
    /// Adds a look.
    pub(super) fn add(&mut self, at: OffsetDateTime, seen: Seen) {
        let now = Instant::now();
        let before = self.looks.back();
        let stream = seen.stream.as_ref();
        let point = Point {
            at,
            pending: seen.pending.map(|(pending, _)| pending).unwrap_or_default(),
            per_second: before.and_then(|(then, before)| {
                let passed = now.duration_since(*then);
                growth(before.stream.as_ref()?, stream?, passed)
            }),
            latency: stream.and_then(|stream| stream.last_latency),
        };
        push(&mut self.points, POINTS_MAX, point);
        push(&mut self.looks, LOOKS_MAX, (now, seen));
    }

    /// The points, oldest first.
    pub(super) fn points(&self) -> Arc<[Point]> {
        self.points.iter().copied().collect()
    }

    /// What is to come, by the oldest look and the last one.
    pub(super) fn forecast(&self) -> Forecast {
        match (self.looks.front(), self.looks.back()) {
            (Some((then, earlier)), Some((now, seen))) => forecast(earlier, seen, now.duration_since(*then)),
            _ => forecast(&Seen::default(), &Seen::default(), Duration::ZERO),
        }
    }
}

fn push<T>(kept: &mut VecDeque<T>, most: usize, value: T) {
    if kept.len() == most {
        kept.pop_front();
    }
    kept.push_back(value);
}

/// Messages in a second; `None` if the stream was made anew, or no time has passed.
#[expect(clippy::cast_precision_loss, reason = "a chart shows three digits")]
fn growth(before: &StreamUse, now: &StreamUse, passed: Duration) -> Option<f64> {
    let messages = now.last_sequence.checked_sub(before.last_sequence)?;
    (!passed.is_zero()).then(|| (messages as f64 / passed.as_secs_f64() * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pending: u64, last_sequence: u64) -> Seen {
        Seen {
            pending: Some((pending, true)),
            stream: Some(StreamUse {
                last_sequence,
                ..StreamUse::default()
            }),
            consumers: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn points_and_looks_are_bounded_whatever_the_time() {
        let mut history = History::default();
        for number in 0..1_000 {
            history.add(OffsetDateTime::UNIX_EPOCH, seen(number, number * 20));
            tokio::time::advance(STEP).await;
        }
        let points = history.points();
        assert_eq!((points.len(), history.looks.len()), (POINTS_MAX, LOOKS_MAX));
        let last = points.last().expect("a point");
        assert_eq!((last.pending, last.per_second), (999, Some(2.0)));
        assert_eq!(history.forecast().between, STEP * 29);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_was_made_anew_has_no_rate() {
        let mut history = History::default();
        for sequence in [100, 3] {
            history.add(OffsetDateTime::UNIX_EPOCH, seen(0, sequence));
            tokio::time::advance(STEP).await;
        }
        assert_eq!(history.points()[1].per_second, None);
    }
}

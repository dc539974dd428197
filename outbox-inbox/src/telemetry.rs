//! Metrics of an inbox (feature `metrics`; no-op without it), and spans linked to the traces of the
//! messages.
//!
//! Names, units and labels of metrics are public interface and listed in [`METRICS`]. Only handled
//! event types are labels.
//!
//! # Traces
//!
//! Each handler run has a span `handle` at level info, each batch a span `handle_batch`.
//! [`link_spans`] links both to the trace contexts of their messages.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::Message;
pub use outbox_core::telemetry::{Metric, link_spans};
use time::OffsetDateTime;

outbox_core::__metrics! {
    RECEIVED = "inbox_received_total", "counter", ["consumer"], "received deliveries, redeliveries included";
    HANDLED = "inbox_handled_total", "counter", ["consumer", "event_type"], "handled messages";
    DUPLICATES = "inbox_duplicates_total", "counter", ["consumer", "event_type"], "deliveries of messages that had been handled or dead-lettered before";
    RETRIES = "inbox_retries_total", "counter", ["consumer", "event_type"], "failed attempts that are followed by another attempt";
    DEFERRED = "inbox_deferred_total", "counter", ["consumer", "event_type"], "runs that the handler deferred (`HandlerError::retry_after`); no attempt is used";
    DEAD_LETTERS = "inbox_dead_letters_total", "counter", ["consumer", "event_type"], "dead letters; event type `unreadable`: no message of an outbox, `unknown_version`: no handler for its version";
    SKIPPED = "inbox_skipped_total", "counter", ["consumer", "event_type"], "messages acknowledged without a handler; event type `not_asked_for`: no version of the program requested the type; `unreadable`, `unknown_version`: by configuration";
    SENT_BACK = "inbox_sent_back_total", "counter", ["consumer", "event_type"], "deliveries returned to the broker because only another version of the program has a handler";
    POSTPONED = "inbox_postponed_total", "counter", ["consumer", "event_type"], "runs that did not start or were interrupted because a database or store failed, or another process has the message; no attempt is used";
    RETURNED = "inbox_returned_total", "counter", ["consumer", "reason"], "deliveries returned to the broker unhandled; reason `shutdown`, or `room`: too many deliveries are blocked";
    GAPS = "inbox_gaps_total", "counter", ["consumer", "event_type"], "gaps in the sequences of an aggregate that were skipped after the wait (strategy `sequence`)";
    IN_FLIGHT = "inbox_in_flight", "gauge", ["consumer"], "deliveries in memory of this process, blocked deliveries included";
    BLOCKED = "inbox_blocked", "gauge", ["consumer"], "deliveries in memory that wait for an earlier failed or missing message";
    PAUSED = "inbox_paused", "gauge", ["consumer"], "1 while the consumer is paused, otherwise 0";
    UNDELIVERED = "inbox_undelivered", "gauge", ["consumer"], "messages on the stream that were not delivered yet; NaN if unknown";
    UNACKNOWLEDGED = "inbox_unacknowledged", "gauge", ["consumer"], "delivered and unacknowledged messages of all processes; NaN if unknown";
    OLDEST_AGE = "inbox_oldest_age_seconds", "gauge", ["consumer"], "age of the oldest undelivered or unacknowledged message on the stream; 0 without such a message, NaN if unknown";
    DEAD_LETTERS_KEPT = "inbox_dead_letters", "gauge", ["consumer"], "dead letters of the consumer, open or marked for retry, counted to 10,000; NaN if unknown";
    HANDLER = "inbox_handler_seconds", "histogram", ["consumer", "event_type", "outcome"], "one run of a \
        handler; outcome `handled`, `failed`, `interrupted` (database unavailable, uses no attempt), \
        `deferred` (the handler returned *not yet*, uses no attempt) or `stopped` (shutdown)";
    LAG = "inbox_lag_seconds", "histogram", ["consumer", "event_type"], "time from recording a message to the commit of its effect, by the clocks of both sides";
}

pub(crate) const UNREADABLE: &str = "unreadable";
pub(crate) const UNKNOWN_VERSION: &str = "unknown_version";

pub(crate) const NOT_ASKED_FOR: &str = "not_asked_for";

pub(crate) const UNDECODED: &str = "undecoded";

#[derive(Debug, Clone, Default)]
pub(crate) struct Watched {
    pub(crate) undelivered: Option<u64>,
    pub(crate) unacknowledged: Option<u64>,
    pub(crate) oldest_age: Option<Duration>,
    pub(crate) dead_letters: Option<u64>,
}

pub(crate) fn handle_span(consumer: &'static str, message: Option<&Message>) -> tracing::Span {
    let Some(message) = message else {
        return tracing::info_span!("handle", otel.kind = "consumer", consumer);
    };
    let span = tracing::info_span!(
        "handle",
        otel.kind = "consumer",
        consumer,
        event_id = %message.event_id,
        event_type = %message.event_type,
        aggregate = %message.aggregate,
    );
    outbox_core::telemetry::link_span(&span, message);
    span
}

pub(crate) fn batch_span(consumer: &'static str, messages: &[Arc<Message>]) -> tracing::Span {
    let span = tracing::info_span!(
        "handle_batch",
        otel.kind = "consumer",
        consumer,
        messages = messages.len()
    );
    for message in messages {
        outbox_core::telemetry::link_span(&span, message);
    }
    span
}

pub(crate) fn lag(message: &Message) -> Duration {
    let lag = OffsetDateTime::now_utc() - message.created_at;
    lag.try_into().unwrap_or_default()
}

#[cfg(feature = "metrics")]
mod facade {
    use super::{
        DEAD_LETTERS_KEPT, Duration, HANDLED, HANDLER, LAG, OLDEST_AGE, RECEIVED, RETURNED, UNACKNOWLEDGED,
        UNDELIVERED, Watched,
    };

    pub(crate) fn count(name: &'static str, consumer: &'static str, event_type: &str) {
        metrics::counter!(name, "consumer" => consumer, "event_type" => event_type.to_owned()).increment(1);
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^52")]
    pub(crate) fn gauge(name: &'static str, consumer: &'static str, value: usize) {
        metrics::gauge!(name, "consumer" => consumer).set(value as f64);
    }

    pub(crate) fn received(consumer: &'static str) {
        metrics::counter!(RECEIVED, "consumer" => consumer).increment(1);
    }

    pub(crate) fn handled(consumer: &'static str, event_type: &str, lag: Duration) {
        count(HANDLED, consumer, event_type);
        metrics::histogram!(LAG, "consumer" => consumer, "event_type" => event_type.to_owned())
            .record(lag.as_secs_f64());
    }

    pub(crate) fn returned(consumer: &'static str, reason: &'static str, deliveries: usize) {
        metrics::counter!(RETURNED, "consumer" => consumer, "reason" => reason)
            .increment(u64::try_from(deliveries).unwrap_or(u64::MAX));
    }

    pub(crate) fn ran(consumer: &'static str, event_type: &str, outcome: &'static str, took: Duration) {
        let event_type = event_type.to_owned();
        metrics::histogram!(HANDLER, "consumer" => consumer, "event_type" => event_type, "outcome" => outcome)
            .record(took.as_secs_f64());
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^52")]
    pub(crate) fn watched(consumer: &str, watched: &Watched) {
        let number = |number: Option<u64>| number.map(|number| number as f64);
        for (name, value) in [
            (UNDELIVERED, number(watched.undelivered)),
            (UNACKNOWLEDGED, number(watched.unacknowledged)),
            (OLDEST_AGE, watched.oldest_age.map(|age| age.as_secs_f64())),
            (DEAD_LETTERS_KEPT, number(watched.dead_letters)),
        ] {
            metrics::gauge!(name, "consumer" => consumer.to_owned()).set(value.unwrap_or(f64::NAN));
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use super::{Duration, Watched};

    pub(crate) fn count(_: &'static str, _: &'static str, _: &str) {}
    pub(crate) fn gauge(_: &'static str, _: &'static str, _: usize) {}
    pub(crate) fn received(_: &'static str) {}
    pub(crate) fn handled(_: &'static str, _: &str, _: Duration) {}
    pub(crate) fn returned(_: &'static str, _: &'static str, _: usize) {}
    pub(crate) fn ran(_: &'static str, _: &str, _: &'static str, _: Duration) {}
    pub(crate) fn watched(_: &str, _: &Watched) {}
}

pub(crate) use facade::*;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use outbox_core::{DomainEvent, MessageContext, NewMessage};

    use super::*;

    #[cfg(feature = "metrics")]
    fn tell_of_everything() {
        describe();
        received("books");
        handled("books", "order.placed", Duration::from_millis(1500));
        for (name, event_type) in [
            (DUPLICATES, "order.placed"),
            (RETRIES, "order.placed"),
            (DEFERRED, "order.placed"),
            (DEAD_LETTERS, UNREADABLE),
            (DEAD_LETTERS, UNKNOWN_VERSION),
            (SKIPPED, NOT_ASKED_FOR),
            (SENT_BACK, "order.cancelled"),
            (POSTPONED, "order.placed"),
            (GAPS, "order.placed"),
        ] {
            count(name, "books", event_type);
        }
        returned("books", "shutdown", 3);
        returned("books", "room", 2);
        for outcome in ["handled", "failed", "interrupted", "deferred", "stopped"] {
            ran("books", "order.placed", outcome, Duration::from_millis(20));
        }
        for (name, value) in [(IN_FLIGHT, 7), (BLOCKED, 2), (PAUSED, 1)] {
            gauge(name, "books", value);
        }
        let watched_ones = Watched {
            undelivered: Some(9),
            unacknowledged: Some(3),
            oldest_age: Some(Duration::from_millis(2500)),
            dead_letters: Some(1),
        };
        watched("books", &watched_ones);
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn metrics_have_the_documented_names_and_labels() {
        use std::collections::HashMap;

        use metrics_util::debugging::{DebugValue, DebuggingRecorder};

        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            tell_of_everything();
        });
        let mut seen = HashMap::new();
        for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
            let name = key.key().name().to_owned();
            let metric = METRICS.iter().find(|metric| metric.name == name).unwrap();
            let labels: Vec<_> = key.key().labels().map(metrics::Label::key).collect();
            assert_eq!(labels, metric.labels, "{name}");
            assert_eq!(description.as_deref(), Some(metric.description), "{name}");
            let is_seconds = unit == Some(metrics::Unit::Seconds);
            assert_eq!(is_seconds, name.ends_with("_seconds"), "{name}");
            let number = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => values[0].into_inner(),
            };
            *seen.entry(name).or_insert(0.0) += number;
        }
        for metric in METRICS {
            assert!(seen.contains_key(metric.name), "{} is not recorded", metric.name);
        }
        for (name, number) in [
            ("inbox_lag_seconds", 1.5),
            ("inbox_oldest_age_seconds", 2.5),
            ("inbox_returned_total", 5.0),
            ("inbox_undelivered", 9.0),
            ("inbox_unacknowledged", 3.0),
        ] {
            assert_eq!(seen[name], number, "{name}");
        }
    }

    #[derive(DomainEvent, serde::Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }

    fn message(traceparent: Option<&str>, created_at: OffsetDateTime) -> Arc<Message> {
        let context = MessageContext {
            traceparent: traceparent.map(str::to_owned),
            ..MessageContext::default()
        };
        let message = context.sync_scope(|| NewMessage::from_event(&OrderPlaced { order_id: 7 }).unwrap());
        Arc::new(message.into_message(Some(1), created_at))
    }

    #[test]
    fn lag_is_never_negative() {
        let now = OffsetDateTime::now_utc();
        assert_eq!(lag(&message(None, now + Duration::from_secs(60))), Duration::ZERO);
        assert!(lag(&message(None, now - Duration::from_secs(60))) >= Duration::from_secs(60));
    }

    const FIRST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const SECOND: &str = "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    static LINKS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

    #[test]
    fn spans_are_linked_to_the_traces_that_recorded_their_messages() {
        link_spans(|span, traceparent, _| {
            let name = span.metadata().unwrap().name().to_owned();
            LINKS.lock().unwrap().push((name, traceparent.to_owned()));
        });
        let _ = tracing_subscriber::fmt().with_writer(std::io::sink).try_init();
        let now = OffsetDateTime::now_utc();
        let (first, second) = (message(Some(FIRST), now), message(Some(SECOND), now));
        handle_span("books", Some(&first));
        handle_span("books", Some(&message(None, now)));
        handle_span("books", None);
        batch_span("books", &[first, second]);
        let links = LINKS.lock().unwrap();
        let links: Vec<_> = links
            .iter()
            .map(|(span, traceparent)| (span.as_str(), traceparent.as_str()))
            .collect();
        let expected = [
            ("handle", FIRST),
            ("handle_batch", FIRST),
            ("handle_batch", SECOND),
        ];
        assert_eq!(links, expected);
    }
}

//! Telemetry of a relay: metrics through the `metrics` facade (feature `metrics`), and span links
//! to the traces that recorded the messages.
//!
//! Invariant: names, units and labels of metrics are public API, listed in [`METRICS`]. No label
//! has unbounded values.
//!
//! # Traces
//!
//! The relay publishes a message in a span `publish` (level debug). OpenTelemetry requires a link
//! to the trace context of the recording request ([`MessageContext`](crate::MessageContext)).
//! `tracing` has no such links, so an application with a tracer installs a function once:
//!
//! ```
//! outbox_core::telemetry::link_spans(|span, traceparent, tracestate| {
//!     // With tracing-opentelemetry: span.add_link(span_context_of(traceparent, tracestate));
//!     # let _ = (span, traceparent, tracestate);
//! });
//! ```

use std::sync::OnceLock;
use std::time::Duration;

use crate::health::Activity;
use crate::message::Message;
use crate::publisher::FailureClass;
use crate::store::{Backlog, Relays};

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name: a histogram in seconds ends in `_seconds`, a counter in `_total`.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Label names.
    pub labels: &'static [&'static str],
    /// The meaning, including the values of labels other than `consumer` and `event_type`.
    pub description: &'static str,
}

crate::__metrics! {
    // The first six are the gauges of the backlog: `observe.rs` selects the gauges by position.
    PENDING = "outbox_pending", "gauge", [], "unpublished messages, deferred messages included; counted to 100,000";
    DEFERRED = "outbox_deferred", "gauge", [], "unpublished messages that wait for their aggregate or their time";
    OLDEST = "outbox_oldest_unpublished_age_seconds", "gauge", [], "time since the oldest unpublished message became due, failed messages included; delayed, paused and halted messages do not count; 0 without such a message";
    DEAD_LETTERS = "outbox_dead_letters", "gauge", [], "dead letters";
    HALTED = "outbox_halted_aggregates", "gauge", [], "aggregates that a dead letter halts until an operator acts";
    BLOCKED = "outbox_blocked_aggregates", "gauge", [], "aggregates that are blocked: halted, delayed or backing off";
    PAUSES = "outbox_pauses", "gauge", [], "active pauses of publishing that this relay has read";
    LEASES = "outbox_leases_owned", "gauge", [], "partitions that this relay owns, of 64";
    RELAYS = "outbox_relays_alive", "gauge", [], "live relays, this relay included";
    UNHEALTHY = "outbox_relays_unhealthy", "gauge", [], "live relays that cannot reach the broker, fetch or settle";
    PUBLISHED = "outbox_published_total", "counter", [], "messages confirmed by the broker";
    DUPLICATES = "outbox_duplicates_total", "counter", [], "confirmed messages that the broker had from an earlier attempt";
    FAILURES = "outbox_publish_failures_total", "counter", ["class"], "failed publishes; class `unknown`, `transient`, `backpressure`, `configuration`, `permanent`, `uncaptured` or `unclassified`";
    DEAD_LETTERS_TOTAL = "outbox_dead_letters_total", "counter", [], "dead letters since the start; after a lost lease some are missing, also of the other messages settled with it";
    RENEWALS = "outbox_lease_renewals_total", "counter", [], "successful renewals of this relay's leases and registration; does not grow while the relay hangs or its database is unavailable";
    LEASES_LOST = "outbox_leases_lost_total", "counter", [], "leases that were lost before their release";
    WAKEUPS = "outbox_found_total", "counter", ["by"], "fetches that found messages; by `wake`, or `poll` if wake-ups fail";
    STORE_FAILURES = "outbox_store_failures_total", "counter", ["activity"], "database calls that failed or timed out; activity `fetching`, `fetching waiting messages`, `settling` or `keeping leases`";
    PUBLISH = "outbox_publish_seconds", "histogram", [], "time from sending a message to its confirmation";
    LATENCY = "outbox_commit_to_stream_seconds", "histogram", [], "time from recording a message to its confirmation";
    FETCH = "outbox_fetch_seconds", "histogram", [], "time of one fetch";
    SETTLE = "outbox_settle_seconds", "histogram", [], "time of one settlement";
    PURGED = "outbox_purged_total", "counter", [], "published messages deleted after their retention";
}

/// Links a span to `traceparent` and `tracestate`.
pub type LinkSpan = fn(&tracing::Span, &str, Option<&str>);

static LINK_SPAN: OnceLock<LinkSpan> = OnceLock::new();

/// Sets the function that links spans to traces of other processes. The first call per process sets
/// the function; later calls return false.
pub fn link_spans(link: LinkSpan) -> bool {
    LINK_SPAN.set(link).is_ok()
}

pub(crate) fn publish_span(message: &Message) -> tracing::Span {
    let span = tracing::debug_span!(
        "publish",
        otel.kind = "producer",
        messaging.message.id = %message.id,
        event_type = %message.event_type,
        aggregate = %message.aggregate,
        sequence = message.sequence,
    );
    link_span(&span, message);
    span
}

/// Links a span to the trace that recorded a message, by the function of [`link_spans`]. Does
/// nothing if no function is set, the message has no trace, or the span is disabled.
pub fn link_span(span: &tracing::Span, message: &Message) {
    if !span.is_disabled()
        && let Some(link) = LINK_SPAN.get()
        && let Some(traceparent) = message.headers.get("traceparent")
    {
        link(span, traceparent, message.headers.get("tracestate"));
    }
}

pub(crate) const BACKLOG_INTERVAL: Duration =
    Duration::from_secs(if cfg!(feature = "metrics") { 15 } else { 60 });

#[cfg(feature = "metrics")]
mod facade {
    use super::{
        Activity, BLOCKED, Backlog, DEAD_LETTERS, DEAD_LETTERS_TOTAL, DEFERRED, DUPLICATES, Duration,
        FAILURES, FETCH, FailureClass, HALTED, LATENCY, LEASES, LEASES_LOST, OLDEST, PAUSES, PENDING,
        PUBLISH, PUBLISHED, PURGED, RELAYS, RENEWALS, Relays, SETTLE, STORE_FAILURES, UNHEALTHY, WAKEUPS,
    };

    #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^52")]
    fn gauge(name: &'static str, value: u64) {
        metrics::gauge!(name).set(value as f64);
    }

    pub(crate) fn backlog(backlog: &Backlog) {
        gauge(PENDING, backlog.pending);
        gauge(DEFERRED, backlog.waiting);
        gauge(DEAD_LETTERS, backlog.dead_letters);
        gauge(HALTED, backlog.halted_aggregates);
        gauge(BLOCKED, backlog.blocked_aggregates);
        metrics::gauge!(OLDEST).set(backlog.oldest_unpublished.unwrap_or_default().as_secs_f64());
    }

    /// Sets the backlog gauges to NaN, because the last count is stale and zero would be wrong.
    pub(crate) fn forget_backlog() {
        for name in [PENDING, DEFERRED, DEAD_LETTERS, HALTED, BLOCKED, OLDEST] {
            metrics::gauge!(name).set(f64::NAN);
        }
    }

    pub(crate) fn pauses(pauses: usize) {
        gauge(PAUSES, pauses as u64);
    }

    pub(crate) fn leases(owned: usize, relays: Relays) {
        gauge(LEASES, owned as u64);
        gauge(RELAYS, u64::from(relays.alive()));
        gauge(UNHEALTHY, u64::from(relays.unhealthy));
    }

    /// Sets the leases to 0 and the numbers of relays to NaN, because a relay without leases cannot
    /// count relays.
    pub(crate) fn leases_ran_out() {
        gauge(LEASES, 0);
        for name in [RELAYS, UNHEALTHY] {
            metrics::gauge!(name).set(f64::NAN);
        }
    }

    pub(crate) fn published(duplicate: bool, publish: Duration, latency: Duration) {
        metrics::counter!(PUBLISHED).increment(1);
        if duplicate {
            metrics::counter!(DUPLICATES).increment(1);
        }
        metrics::histogram!(PUBLISH).record(publish.as_secs_f64());
        metrics::histogram!(LATENCY).record(latency.as_secs_f64());
    }

    pub(crate) fn failed(class: FailureClass) {
        metrics::counter!(FAILURES, "class" => class.as_str()).increment(1);
    }

    pub(crate) fn store_failed(activity: Activity) {
        metrics::counter!(STORE_FAILURES, "activity" => activity.as_str()).increment(1);
    }

    pub(crate) fn dead_letter() {
        metrics::counter!(DEAD_LETTERS_TOTAL).increment(1);
    }

    pub(crate) fn renewed() {
        metrics::counter!(RENEWALS).increment(1);
    }

    pub(crate) fn leases_lost(leases: usize) {
        metrics::counter!(LEASES_LOST).increment(leases as u64);
    }

    pub(crate) fn found(by_wake: bool) {
        metrics::counter!(WAKEUPS, "by" => if by_wake { "wake" } else { "poll" }).increment(1);
    }

    pub(crate) fn fetch(took: Duration) {
        metrics::histogram!(FETCH).record(took.as_secs_f64());
    }

    pub(crate) fn settle(took: Duration) {
        metrics::histogram!(SETTLE).record(took.as_secs_f64());
    }

    pub(crate) fn purged(messages: u64) {
        metrics::counter!(PURGED).increment(messages);
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use super::{Activity, Backlog, Duration, FailureClass, Relays};

    pub(crate) fn backlog(_: &Backlog) {}
    pub(crate) fn forget_backlog() {}
    pub(crate) fn pauses(_: usize) {}
    pub(crate) fn leases(_: usize, _: Relays) {}
    pub(crate) fn leases_ran_out() {}
    pub(crate) fn published(_: bool, _: Duration, _: Duration) {}
    pub(crate) fn failed(_: FailureClass) {}
    pub(crate) fn store_failed(_: Activity) {}
    pub(crate) fn dead_letter() {}
    pub(crate) fn renewed() {}
    pub(crate) fn leases_lost(_: usize) {}
    pub(crate) fn found(_: bool) {}
    pub(crate) fn fetch(_: Duration) {}
    pub(crate) fn settle(_: Duration) {}
    pub(crate) fn purged(_: u64) {}
}

pub(crate) use facade::*;

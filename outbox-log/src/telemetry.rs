//! Metrics of a log relay, beside the metrics of [`outbox_core::telemetry`].

use crate::LogStatus;

outbox_core::__metrics! {
    LOG_READS = "outbox_log_reads", "gauge", [], "1 while this relay reads the database's log, 0 while it stands by or has ended; only of log relays";
    LOG_UNDECIDED = "outbox_log_undecided", "gauge", [], "messages that were read from the log and are neither published nor the table's; 0 while it stands by";
    LOG_ADOPTS = "outbox_log_adopts", "gauge", [], "1 while the log keeps too much of the database's disk, so that messages are published from the table; else 0";
    LOG_RETAINED = "outbox_log_retained_bytes", "gauge", [], "bytes of the database's disk that the log keeps; 0 on a relay that does not read it";
    LOG_SAFE = "outbox_log_safe_bytes", "gauge", [], "bytes that may be written before the database gives the log up; infinite if it never does, and on a relay that does not read";
}

/// Sets the gauges. A relay that does not read the log reports no size of the log.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact beyond 2^52")]
pub(crate) fn report(status: &LogStatus) {
    let retained = status.retained.filter(|_| status.reads);
    let gauge = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    gauge(LOG_READS, u64::from(status.reads));
    gauge(LOG_UNDECIDED, status.undecided as u64);
    gauge(LOG_ADOPTS, u64::from(status.reads && status.adopts));
    gauge(LOG_RETAINED, retained.map_or(0, |retained| retained.bytes));
    let safe = retained.and_then(|retained| retained.safe);
    metrics::gauge!(LOG_SAFE).set(safe.map_or(f64::INFINITY, |safe| safe as f64));
}

/// Sets no gauge.
#[cfg(not(feature = "metrics"))]
pub(crate) fn report(_: &LogStatus) {}

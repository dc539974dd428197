//! Metrics of a log relay, in addition to [`outbox_core::telemetry`].

use crate::LogStatus;

outbox_core::__metrics! {
    LOG_READS = "outbox_log_reads", "gauge", [], "1 while this log relay reads the database's log, 0 on standby and after the end";
    LOG_UNDECIDED = "outbox_log_undecided", "gauge", [], "messages read from the log that are neither published nor adopted by the table; 0 on standby";
    LOG_ADOPTS = "outbox_log_adopts", "gauge", [], "1 while the log retains more than `retained_max`, so that the table adopts messages";
    LOG_RETAINED = "outbox_log_retained_bytes", "gauge", [], "bytes of the database's disk that the log retains; 0 on standby";
    LOG_SAFE = "outbox_log_safe_bytes", "gauge", [], "bytes that may be written before the database drops the log; infinite without a limit and on standby";
}

/// Reports the gauges. A relay that does not read the log reports no log size.
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

#[cfg(not(feature = "metrics"))]
pub(crate) fn report(_: &LogStatus) {}

//! The table of a crate's metrics, which the documentation, the recorder and the tests read.
//!
//! Not here: the rows, see [`telemetry`](crate::telemetry) and its namesake in `outbox-inbox`.

/// Defines a constant for each metric, `METRICS` with all of them, and `describe`, which describes them to the recorder. Expects the feature `metrics` and the
/// optional dependency of that name in the crate that calls it.
#[doc(hidden)]
#[macro_export]
macro_rules! __metrics {
    ($($constant:ident = $name:literal, $kind:literal, [$($label:literal),*], $description:literal;)*) => {
        $(#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "only the facade names them"))] pub(crate) const $constant: &str = $name;)*

        /// All metrics, with their units and labels.
        ///
        /// | name | kind | labels | meaning |
        /// |---|---|---|---|
        $(#[doc = concat!("| `", $name, "` | ", $kind, " | " $(, "`", $label, "` ")*, "| ", $description, " |")])*
        pub const METRICS: &[$crate::telemetry::Metric] = &[
            $($crate::telemetry::Metric { name: $name, kind: $kind, labels: &[$($label),*], description: $description },)*
        ];

        /// Describes all metrics to the recorder.
        pub(crate) fn describe() {
            #[cfg(feature = "metrics")]
            for metric in METRICS {
                let unit = if metric.name.ends_with("_seconds") {
                    metrics::Unit::Seconds
                } else {
                    metrics::Unit::Count
                };
                match metric.kind {
                    "gauge" => metrics::describe_gauge!(metric.name, unit, metric.description),
                    "counter" => metrics::describe_counter!(metric.name, unit, metric.description),
                    _ => metrics::describe_histogram!(metric.name, unit, metric.description),
                }
            }
        }
    };
}

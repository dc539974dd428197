//! The macro for a crate's table of metrics.

/// Defines a constant for each metric, `METRICS` with all of them, and `describe`. The calling
/// crate needs the feature and optional dependency `metrics`.
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

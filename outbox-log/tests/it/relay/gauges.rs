//! The gauges of a log relay.

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox_log::telemetry::METRICS;

use super::*;

/// If a standby relay kept its gauges, it would report disk usage that another relay has released.
#[tokio::test(start_paused = true)]
async fn gauges_reset_when_the_reading_ends() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let gauges = || {
        let mut gauges: Vec<(String, f64)> = Vec::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let name = key.key().name();
            if let (Some(name), DebugValue::Gauge(value)) = (name.strip_prefix("outbox_log_"), value) {
                gauges.push((name.to_owned(), value.into_inner()));
            }
        }
        gauges.sort_by(|(one, _), (other, _)| one.cmp(other));
        gauges
    };
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let log = store.log();
    broker.set_down(true);
    credit(&store, 10, 30);
    let relay = LogRelay::new(store, log, broker.publisher())
        .with_config(quick())
        .with_log_config(LogConfig::default().retained_max(1_000_000));
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let scenario = async {
        while health.status().retained.is_none() || health.status().undecided == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let status = health.status();
        let expected = [
            ("adopts", 0.0),
            ("reads", 1.0),
            ("retained_bytes", status.retained.unwrap().bytes as f64),
            ("safe_bytes", f64::INFINITY),
            ("undecided", status.undecided as f64),
        ];
        assert!(expected[2].1 > 0.0 && expected[4].1 > 0.0, "{expected:?}");
        assert_eq!(gauges(), expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(METRICS.len(), expected.len(), "each documented gauge is reported");
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    let expected = [
        ("adopts", 0.0),
        ("reads", 0.0),
        ("retained_bytes", 0.0),
        ("safe_bytes", f64::INFINITY),
        ("undecided", 0.0),
    ];
    assert_eq!(gauges(), expected.map(|(name, value)| (name.to_owned(), value)));
}

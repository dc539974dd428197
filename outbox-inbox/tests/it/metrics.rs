//! Metrics of a running inbox. Each test runs on one thread, so that its recorder sees all metrics.

use std::collections::HashMap;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use outbox_core::retry::Backoff;
use outbox_inbox::telemetry::METRICS;
use outbox_inbox::{PausedConsumers, Router};
use outbox_testing::{MemoryBroker, eventually};
use tokio_util::sync::CancellationToken;

use crate::noting;
use crate::orders::{Orders, Rule, copy, numbered, prepare, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{
    Backend, OrderPlaced, Script, Step, TestDb, book, placed, publish, quick, with_ack_wait,
};

fn record() -> (Snapshotter, metrics::LocalRecorderGuard<'static>) {
    let recorder: &'static DebuggingRecorder = Box::leak(Box::default());
    let guard = metrics::set_default_local_recorder(recorder);
    (recorder.snapshotter(), guard)
}

/// Metric values by name and labels. An unknown gauge is absent; a histogram is its number of
/// values.
fn values(snapshotter: &Snapshotter) -> HashMap<String, f64> {
    let mut values = HashMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let name = key.key().name();
        let documented = METRICS.iter().find(|metric| metric.name == name);
        let labels: Vec<_> = key.key().labels().map(metrics::Label::key).collect();
        assert_eq!(
            documented.map(|metric| metric.labels),
            Some(&labels[..]),
            "{name}"
        );
        let labels = key.key().labels().map(metrics::Label::value);
        let name = [name].into_iter().chain(labels).collect::<Vec<_>>().join(" ");
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Histogram(values) => values.len() as f64,
            DebugValue::Gauge(value) => value.into_inner(),
        };
        if !value.is_nan() {
            values.insert(name, value);
        }
    }
    values
}

#[tokio::test]
async fn gauges_of_paused_consumers_stay_current() {
    let (snapshotter, _guard) = record();
    let test = TestDb::open(Backend::SqliteMemory, "paused_gauges")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    let router = Router::new().handler::<book>();
    let inbox = || test.inbox(&broker, router.clone()).with_state(Script::ok());
    within(inbox().drain()).await.unwrap();
    PausedConsumers::new(test.db.clone())
        .pause("books", "stocktaking")
        .await
        .unwrap();
    for order_id in 1..=3 {
        publish(&broker, &placed(order_id)).await;
    }
    let waiting = || {
        let values = values(&snapshotter);
        [
            "inbox_undelivered books",
            "inbox_unacknowledged books",
            "inbox_dead_letters books",
        ]
        .map(|name| values.get(name).copied())
    };
    let stop = CancellationToken::new();
    let (running, token) = (inbox(), stop.clone());
    let run = async { running.run(token).await.unwrap() };
    let looking = async {
        eventually("the gauges", async || {
            waiting() == [Some(3.0), Some(0.0), Some(0.0)]
        })
        .await;
        stop.cancel();
    };
    tokio::join!(run, looking);
    assert_eq!(waiting(), [None; 3]);
}

noting!(note_counted, consumer = "counted", strategy = sequence);

#[tokio::test]
async fn running_inbox_counts_outcomes() {
    let (snapshotter, _guard) = record();
    let test = TestDb::open(Backend::SqliteMemory, "metrics").await.unwrap();
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let script = Script::new([Step::Fail, Step::Ok, Step::Fatal], Step::Ok);
    let message = publish(&broker, &placed(1)).await;
    publish(&broker, &OrderPlaced { order_id: 1, line: 1 }).await;
    publish(&broker, &OrderPlaced { order_id: 1, line: 2 }).await;
    put(&broker, &copy(&message)).await;
    broker.inject("foreign", Vec::new(), &b"x"[..]);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script);
    within(inbox.drain()).await.unwrap();
    let (other, numbers) = (MemoryBroker::new(), [1, 3]);
    for number in numbers {
        put(&other, &numbered(7, number)).await;
    }
    let inbox = test
        .inbox(&other, Router::new().handler::<note_counted>())
        .with_config(with_ack_wait(2))
        .with_state(orders);
    within(inbox.drain()).await.unwrap();
    let seen = values(&snapshotter);
    for (name, count) in [
        ("inbox_received_total books", 5.0),
        ("inbox_handled_total books order.placed", 2.0),
        ("inbox_duplicates_total books order.placed", 1.0),
        ("inbox_retries_total books order.placed", 1.0),
        ("inbox_dead_letters_total books order.placed", 1.0),
        ("inbox_dead_letters_total books unreadable", 1.0),
        ("inbox_handler_seconds books order.placed handled", 2.0),
        ("inbox_handler_seconds books order.placed failed", 2.0),
        ("inbox_lag_seconds books order.placed", 2.0),
        ("inbox_handled_total counted order.placed", 2.0),
        ("inbox_gaps_total counted order.placed", 1.0),
        ("inbox_in_flight books", 0.0),
        ("inbox_in_flight counted", 0.0),
        ("inbox_blocked books", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&count), "{name}: {seen:#?}");
    }
}

noting!(note_shown, consumer = "shown");

#[tokio::test]
async fn gauges_stay_current_while_no_job_ends() {
    let (snapshotter, _guard) = record();
    let test = TestDb::open(Backend::SqliteMemory, "shown").await.unwrap();
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Wait);
    orders.rule(2, Rule::Fail);
    let hour = Duration::from_secs(3600);
    let config = quick().backoff(Backoff { min: hour, max: hour });
    let inbox = test
        .inbox(&broker, Router::new().handler::<note_shown>())
        .with_config(config)
        .with_state(orders.clone());
    put(&broker, &numbered(1, 1)).await;
    let (shutdown, run) = spawn(inbox);
    let shows = |name: &str, least: f64| {
        values(&snapshotter)
            .get(name)
            .is_some_and(|value| *value >= least)
    };
    eventually("a delivery in memory", async || {
        shows("inbox_in_flight shown", 1.0)
    })
    .await;
    for line in [1, 2] {
        put(&broker, &numbered(2, line)).await;
    }
    orders.rule(1, None);
    eventually("two blocked deliveries", async || {
        shows("inbox_blocked shown", 2.0)
    })
    .await;
    assert_eq!(orders.seen().runs_of(2), 1);
    stop((shutdown, run)).await;
}

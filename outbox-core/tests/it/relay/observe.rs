//! Tests of a relay's reports: health, hook, metrics and spans.

use std::sync::{Arc, Mutex};

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox_core::telemetry::METRICS;
use outbox_core::{
    EventPolicy, FailureClass, Health, MessageContext, OutboxStore, PoisonPolicy, Retention, Selection,
};
use outbox_testing::Operator as _;

use super::*;

#[tokio::test(start_paused = true)]
async fn health_shows_failures_and_recovery() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let relay = relay_of(&store, &broker, quick());
    let health = relay.health();
    assert!(!health.now().is_alive(), "it does not run yet");
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(health.now(), Health::Alive);

        broker.set_down(true);
        credit(&store, 3, 1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(
            health
                .now()
                .to_string()
                .starts_with("degraded: broker has been failing"),
            "{}",
            health.now()
        );
        tokio::time::sleep(Duration::from_secs(300)).await;
        let now = health.now();
        assert!(is_stuck(&now) && now.is_alive(), "{now}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        broker.set_down(false);
        store.until_drained().await;
        assert_eq!(health.now(), Health::Alive);

        store.set_down(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(
            health
                .now()
                .to_string()
                .starts_with("degraded: database has been failing"),
            "{}",
            health.now()
        );
        store.set_down(false);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(health.now(), Health::Alive);

        broker.fail_next(1, FailureClass::Permanent);
        credit(&store, 1, 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(
            health.now().to_string().contains("1 aggregate is halted"),
            "{}",
            health.now()
        );
    })
    .await;
    assert!(!health.now().is_alive(), "it stopped");
}

/// The first rejected message halts the aggregate; the second message waits. A retry of the first
/// message while the second is in flight gives the relay both messages at once.
#[tokio::test(start_paused = true)]
async fn hook_receives_dead_letters_of_an_aggregate_in_order() {
    let latency = Duration::from_millis(200);
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new().with_latency(latency));
    credit(&store, 1, 3);
    broker.fail_matching(|message| message.sequence < Some(3), FailureClass::Permanent);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (notes, rows) = (told.clone(), store.clone());
    let relay = relay_of(&store, &broker, quick()).on_dead_letter(move |dead| {
        let row = rows
            .rows()
            .into_iter()
            .find(|row| row.row_id == dead.row_id)
            .unwrap();
        assert_eq!((row.status, row.halts), (Dead, true), "recorded first");
        notes.lock().unwrap().push(row.message.sequence.unwrap());
    });
    let (first, second) = (store.rows()[0].message.id, store.rows()[1].message.id);
    let report = run_during(&relay, async {
        until("the first refusal", || statuses(&store, 1)[0] == Dead).await;
        assert_eq!(store.skip(&Selection::id(first)).await.unwrap(), 1);
        until("a second publish", || broker.publishes() == 2).await;
        assert_eq!(store.retry(&Selection::id(first)).await.unwrap(), 1);
        until("the second refusal", || statuses(&store, 1)[1] == Dead).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(statuses(&store, 1), [Waiting, Dead, Waiting]);
        assert_eq!(store.retry(&Selection::id(second)).await.unwrap(), 1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(statuses(&store, 1), [Dead, Waiting, Waiting]);
    })
    .await;
    assert_eq!(*told.lock().unwrap(), [1, 2, 1]);
    assert_eq!((report.published, report.dead_letters), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn panicking_hook_does_not_end_the_relay() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 5, 1);
    broker.fail_matching(|message| message.aggregate.id == "3", FailureClass::Permanent);
    let relay = relay_of(&store, &broker, quick()).on_dead_letter(|_| panic!("not to be told"));
    let report = relay.drain().await.unwrap();
    assert_eq!((report.published, report.dead_letters), (4, 1));
    assert_eq!(statuses(&store, 3), [Dead]);
}

#[tokio::test(start_paused = true)]
async fn event_types_follow_their_policies() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 2);
    broker.fail_matching(|message| message.sequence == Some(1), FailureClass::Unclassified);
    let lenient = EventPolicy::default()
        .attempts_max(2)
        .on_poison(PoisonPolicy::Continue);
    let config = quick().event_policy("account.credited", lenient);
    run_during(&relay_of(&store, &broker, config), store.until_drained()).await;
    assert_eq!(statuses(&store, 1), [Dead, Published]);
    assert_eq!(store.rows()[0].attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_the_documented_names_and_values() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 10, 2);
    broker.fail_matching(|message| message.aggregate.id == "3", FailureClass::Permanent);
    broker.lose_acks(2);
    let relay = relay_of(&store, &broker, quick());
    let mut snapshot = None;
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        snapshot = Some(snapshotter.snapshot());
    })
    .await;
    let seen: std::collections::HashMap<String, DebugValue> = snapshot
        .unwrap()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
            (
                [vec![key.key().name().to_owned()], labels].concat().join(" "),
                value,
            )
        })
        .collect();
    for name in seen.keys() {
        let name = name.split(' ').next().unwrap();
        assert!(
            METRICS.iter().any(|metric| metric.name == name),
            "{name} is not documented"
        );
    }
    let counted = |name: &str| match seen.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        Some(DebugValue::Gauge(value)) => value.into_inner() as u64,
        Some(DebugValue::Histogram(values)) => values.len() as u64,
        None => 0,
    };
    assert_eq!(counted("outbox_published_total"), 18);
    assert_eq!(counted("outbox_commit_to_stream_seconds"), 18);
    assert_eq!(counted("outbox_duplicates_total"), 2);
    assert_eq!(counted("outbox_publish_failures_total permanent"), 1);
    assert_eq!(counted("outbox_publish_failures_total unknown"), 2);
    assert_eq!(counted("outbox_dead_letters_total"), 1);
    assert_eq!(counted("outbox_dead_letters"), 1);
    assert_eq!(counted("outbox_pending"), 1);
    assert_eq!(counted("outbox_halted_aggregates"), 1);
    assert!(counted("outbox_found_total poll") >= 1);
}

#[tokio::test(start_paused = true)]
async fn every_documented_metric_is_reported() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 10, 2);
    broker.fail_matching(|message| message.aggregate.id == "3", FailureClass::Permanent);
    broker.lose_acks(2);
    let hour = Duration::from_secs(3600);
    let relay = relay_of(&store, &broker, quick().retention(Retention::KeepFor(hour)));
    run_during(&relay, async {
        tokio::time::sleep(hour * 2).await;
        store.expire_leases();
        store.fail_next(1);
        tokio::time::sleep(quick().lease_ttl).await;
    })
    .await;
    let reported: std::collections::HashSet<String> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, ..)| key.key().name().to_owned())
        .collect();
    let silent: Vec<_> = METRICS
        .iter()
        .filter(|metric| !reported.contains(metric.name))
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// Another relay counts the backlog from now on, so the last gauges must not stay, nor become zero.
#[tokio::test(start_paused = true)]
async fn backlog_gauges_end_with_partition_0() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let gauges = || {
        let mut gauges = Vec::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let is_of_backlog = METRICS[..6].iter().any(|metric| metric.name == key.key().name());
            if let (true, DebugValue::Gauge(value)) = (is_of_backlog, value) {
                gauges.push(value.into_inner());
            }
        }
        gauges
    };
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    broker.set_down(true);
    credit(&store, 10, 1);
    run_during(&relay_of(&store, &broker, quick()), async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let counted = gauges();
        assert_eq!(counted.len(), 6);
        assert!(
            counted.iter().all(|value| !value.is_nan()) && counted.contains(&10.0),
            "{counted:?}"
        );
        let other = outbox_core::OwnerId::fresh();
        store.expire_leases();
        let leases = store.acquire(other, Duration::from_secs(600), 64).await.unwrap();
        assert_eq!(leases.len(), 64);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let left = gauges();
        assert!(
            left.len() == 6 && left.iter().all(|value| value.is_nan()),
            "{left:?}"
        );
    })
    .await;
}

/// A metrics snapshot has a gauge only if it was set after the previous snapshot.
#[tokio::test(start_paused = true)]
async fn database_outage_leaves_no_stale_gauge() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let gauges = || {
        let (mut backlog, mut owned, mut relays) = (Vec::new(), Vec::new(), Vec::new());
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let DebugValue::Gauge(value) = value else {
                continue;
            };
            let value = value.into_inner();
            match key.key().name() {
                "outbox_leases_owned" => owned.push(value),
                "outbox_relays_alive" | "outbox_relays_unhealthy" => relays.push(value),
                name if METRICS[..6].iter().any(|metric| metric.name == name) => backlog.push(value),
                _ => {}
            }
        }
        (backlog, owned, relays)
    };
    let is_known =
        |values: &[f64], count| values.len() == count && values.iter().all(|value| !value.is_nan());
    let is_unknown =
        |values: &[f64], count| values.len() == count && values.iter().all(|value| value.is_nan());
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    run_during(&relay_of(&store, &broker, quick()), async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let (backlog, owned, relays) = gauges();
            assert!(
                is_known(&backlog, 6) && is_known(&relays, 2),
                "{backlog:?}, {relays:?}"
            );
            assert_eq!(owned, [64.0]);
            tokio::time::sleep(Duration::from_secs(60)).await;
            store.set_down(true);
            tokio::time::sleep(Duration::from_secs(120)).await;
            let (backlog, owned, relays) = gauges();
            assert!(
                is_unknown(&backlog, 6) && is_unknown(&relays, 2),
                "{backlog:?}, {relays:?}"
            );
            assert_eq!(owned, [0.0], "they have run out");
            store.set_down(false);
        }
    })
    .await;
}

static LINKS: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[tokio::test(start_paused = true)]
async fn publish_span_links_to_the_recording_trace() {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    outbox_core::telemetry::link_spans(|span, traceparent, _| {
        assert_eq!(span.metadata().unwrap().name(), "publish");
        LINKS.lock().unwrap().push(traceparent.to_owned());
    });
    // The subscriber is global, because spans shared with other tests do not reliably reach one
    // thread's subscriber.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(std::io::sink)
        .try_init();
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let context = MessageContext {
        traceparent: Some(traceparent.to_owned()),
        ..MessageContext::default()
    };
    context.sync_scope(|| credit(&store, 1, 1));
    relay_of(&store, &broker, quick()).drain().await.unwrap();
    assert_eq!(*LINKS.lock().unwrap(), [traceparent]);
    let headers = &broker.messages()[0].headers;
    assert_eq!(headers.get("traceparent"), Some(traceparent));
}

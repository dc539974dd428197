//! The lag of consumers.

use outbox_inbox::{Consumers, ConsumersError, DeadLetterSelection, DeadLetters, PausedConsumers, Router};
use outbox_testing::MemoryBroker;

use crate::on_every_backend;
use crate::runtime::within;
use crate::support::{Script, Step, TestDb, book, placed, publish};

async fn lag_of_a_stalled_consumer_is_reported(test: TestDb) {
    let broker = MemoryBroker::new();
    let consumers = Consumers::new(test.db.clone(), broker.subscriber());
    assert_eq!(consumers.lag("books").await.unwrap().on_stream, None);
    publish(&broker, &placed(1)).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(Script::new([Step::Fatal], Step::Ok));
    within(inbox.drain()).await.unwrap();
    let idle = consumers.lag("books").await.unwrap();
    let on_stream = idle.on_stream.unwrap();
    assert_eq!((on_stream.undelivered, on_stream.unacknowledged), (0, 0));
    assert_eq!((on_stream.oldest_age, on_stream.is_receiving), (None, false));
    assert_eq!((idle.dead_letters_open, idle.paused), (1, None));

    PausedConsumers::new(test.db.clone())
        .pause("books", "stocktaking")
        .await
        .unwrap();
    for order_id in 2..=6 {
        publish(&broker, &placed(order_id)).await;
    }
    let letters = DeadLetters::new(test.db.clone());
    assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 1);
    let behind = consumers.lag("books").await.unwrap();
    let on_stream = behind.on_stream.unwrap();
    assert_eq!((on_stream.undelivered, on_stream.unacknowledged), (5, 0));
    assert!(on_stream.oldest_age.is_some());
    assert_eq!((behind.dead_letters_open, behind.dead_letters_marked), (0, 1));
    assert_eq!(behind.paused.as_deref(), Some("stocktaking"));
    let all = consumers.lags(["nobody"]).await.unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["books", "nobody"]);
    assert_eq!(
        (all["books"].dead_letters_open, all["books"].dead_letters_marked),
        (0, 1)
    );
    assert_eq!(all["books"].paused.as_deref(), Some("stocktaking"));
    let nobody = &all["nobody"];
    assert_eq!(
        (&nobody.on_stream, nobody.dead_letters_open, &nobody.paused),
        (&None, 0, &None)
    );
    let wrong = consumers.lag("no name").await.unwrap_err();
    assert!(matches!(wrong, ConsumersError::Name(_)), "{wrong}");
}

on_every_backend!(lag_of_a_stalled_consumer_is_reported);

#[cfg(feature = "metrics")]
mod gauges {
    use std::collections::HashMap;

    use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
    use outbox_testing::eventually;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::support::Backend;

    fn gauges(snapshotter: &Snapshotter) -> HashMap<String, Option<f64>> {
        let mut gauges = HashMap::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            if let DebugValue::Gauge(value) = value {
                let value = value.into_inner();
                gauges.insert(key.key().name().to_owned(), (!value.is_nan()).then_some(value));
            }
        }
        gauges
    }

    fn waiting(gauges: &HashMap<String, Option<f64>>) -> [Option<f64>; 3] {
        ["inbox_undelivered", "inbox_unacknowledged", "inbox_dead_letters"]
            .map(|name| gauges.get(name).copied().flatten())
    }

    /// On one thread, so that its recorder sees all metrics.
    #[tokio::test]
    async fn gauges_of_paused_consumers_stay_current() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(&recorder);
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
        let stop = CancellationToken::new();
        let (running, token) = (inbox(), stop.clone());
        let run = async { running.run(token).await.unwrap() };
        let looking = async {
            eventually("the gauges", async || {
                waiting(&gauges(&snapshotter)) == [Some(3.0), Some(0.0), Some(0.0)]
            })
            .await;
            stop.cancel();
        };
        tokio::join!(run, looking);
        assert_eq!(waiting(&gauges(&snapshotter)), [None; 3]);
    }
}

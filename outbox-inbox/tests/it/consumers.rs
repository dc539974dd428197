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

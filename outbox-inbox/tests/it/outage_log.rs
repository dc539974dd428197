//! Each outage is logged once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_inbox::Router;
use outbox_testing::{MemoryBroker, eventually};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::runtime::{finish, spawn, within};
use crate::support::{Backend, Script, TestDb, book, placed, publish, quick};
use crate::traces::listen;

const NO_PAUSES: &str = "paused consumers are unknown, running consumers continue";
const NO_DATABASE: &str = "database unavailable, retried";
/// Logged at debug level.
const STILL_NO_DATABASE: &str = "database still unavailable";

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
}

impl Log {
    fn count(&self, message: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|said| *said == message)
            .count()
    }
}

async fn away(test: &TestDb, table: &str) {
    test.execute(&format!("ALTER TABLE {table} RENAME TO {table}_gone"))
        .await;
}

async fn back(test: &TestDb, table: &str) {
    test.execute(&format!("ALTER TABLE {table}_gone RENAME TO {table}"))
        .await;
}

/// On one thread, because the log is captured per thread.
#[tokio::test]
async fn database_outage_is_logged_once() {
    let log = Log::default();
    let _listening = listen(tracing_subscriber::registry().with(log.clone()));
    let test = TestDb::open(Backend::SqliteMemory, "outage_log").await.unwrap();
    let broker = MemoryBroker::new();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(quick())
        .with_state(Script::ok());
    let (shutdown, run) = spawn(inbox);
    publish(&broker, &placed(0)).await;
    within(broker.until_idle("books")).await;
    away(&test, "inbox_pauses").await;
    away(&test, "inbox_messages").await;
    publish(&broker, &placed(1)).await;
    eventually("trouble of each kind", async || {
        log.count(STILL_NO_DATABASE) >= 3 && log.count(NO_PAUSES) >= 1
    })
    .await;
    // The pauses are polled each second.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!((log.count(NO_DATABASE), log.count(NO_PAUSES)), (1, 1));
    back(&test, "inbox_messages").await;
    back(&test, "inbox_pauses").await;
    within(broker.until_idle("books")).await;
    away(&test, "inbox_messages").await;
    publish(&broker, &placed(2)).await;
    let before = log.count(STILL_NO_DATABASE);
    eventually("more trouble", async || log.count(STILL_NO_DATABASE) > before).await;
    assert_eq!(log.count(NO_DATABASE), 2);
    back(&test, "inbox_messages").await;
    assert_eq!(finish(&broker, "books", (shutdown, run)).await.handled, 3);
}

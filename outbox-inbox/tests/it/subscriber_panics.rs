//! Panics in the application's tracing subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, Inbox, Router, Tx, idempotent_handler};
use outbox_testing::MemoryBroker;
use outbox_testing::MemorySubscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::{Backend, OrderPlaced, TestDb, placed, publish, quick};
use crate::traces::{Listening, listen};

#[idempotent_handler(consumer = "together", batch = 10)]
async fn take_together(_event: Event<OrderPlaced>, _tx: Tx<'_>) -> Result<(), HandlerError> {
    Ok(())
}

struct Flawed {
    span: &'static str,
    event: &'static str,
    panics: Arc<AtomicU32>,
}

impl Flawed {
    fn panic_at(&self, here: bool) {
        if here {
            self.panics.fetch_add(1, Ordering::SeqCst);
            panic!("flawed subscriber");
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Flawed {
    fn on_new_span(&self, span: &tracing::span::Attributes<'_>, _: &tracing::Id, _: Context<'_, S>) {
        self.panic_at(span.metadata().name() == self.span);
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Begins<'a>(&'a str, bool);
        impl tracing::field::Visit for Begins<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.1 |= field.name() == "message" && format!("{value:?}").starts_with(self.0);
            }
        }
        let mut begins = Begins(self.event, false);
        event.record(&mut begins);
        self.panic_at(begins.1);
    }
}

/// For the current thread, on which the whole test runs.
fn flawed(span: &'static str, event: &'static str) -> (Arc<AtomicU32>, Listening) {
    let panics = Arc::new(AtomicU32::new(0));
    let layer = Flawed {
        span,
        event,
        panics: panics.clone(),
    };
    (panics, listen(tracing_subscriber::registry().with(layer)))
}

fn inbox(test: &TestDb, broker: &MemoryBroker) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<take_together>())
        .with_config(quick().concurrency(1).attempts_max(3))
}

#[tokio::test]
async fn unreadable_delivery_with_panic_is_dead_lettered() {
    let test = TestDb::open(Backend::SqliteMemory, "panics_unreadable")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    broker.inject("events.order.1.placed", Vec::new(), b"raw".to_vec());
    let (panics, _guard) = flawed("", "delivery is no outbox message, dead-lettered");
    let report = inbox(&test, &broker).drain().await.unwrap();
    assert_eq!(
        (report.dead_letters, panics.load(Ordering::SeqCst)),
        (1, 3),
        "{report:?}"
    );
    let letters = dead_letters(&test.db, "together").await.unwrap();
    assert_eq!(letters[0].raw_payload(), b"raw");
    assert!(
        letters[0].error.ends_with("panicked: flawed subscriber"),
        "{}",
        letters[0].error
    );
}

#[tokio::test]
async fn panicking_span_ends_as_a_dead_letter() {
    let test = TestDb::open(Backend::SqliteMemory, "panics_span").await.unwrap();
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let (panics, _guard) = flawed("handle", "no such event");
    let report = inbox(&test, &broker).drain().await.unwrap();
    assert_eq!(
        (report.dead_letters, panics.load(Ordering::SeqCst)),
        (1, 3),
        "{report:?}"
    );
}

#[tokio::test]
async fn panicking_job_frees_its_slot() {
    let test = TestDb::open(Backend::SqliteMemory, "panics_job").await.unwrap();
    let broker = MemoryBroker::new();
    for order in 1..=3 {
        publish(&broker, &placed(order)).await;
    }
    let (panics, _guard) = flawed("handle_batch", "no such event");
    let report = inbox(&test, &broker).drain().await.unwrap();
    assert!(panics.load(Ordering::SeqCst) > 0);
    assert_eq!((report.handled, report.dead_letters), (3, 0), "{report:?}");
}

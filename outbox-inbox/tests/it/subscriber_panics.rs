//! Panics in the application's tracing subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_inbox::{Event, HandlerError, Router, Tx, idempotent_handler};
use outbox_testing::MemoryBroker;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::{Backend, OrderPlaced, TestDb, only_letter, placed, publish, quick};
use crate::traces::listen;

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

#[tokio::test]
async fn panics_of_a_subscriber_end_no_inbox() {
    for (span, event, readable, expected) in [
        ("", "delivery is no outbox message, dead-lettered", 0, (0, 1)),
        ("handle", "no such event", 1, (0, 1)),
        ("handle_batch", "no such event", 3, (3, 0)),
    ] {
        let test = TestDb::open(Backend::SqliteMemory, "panics").await.unwrap();
        let broker = MemoryBroker::new();
        for order in 1..=readable {
            publish(&broker, &placed(order)).await;
        }
        if readable == 0 {
            broker.inject("events.order.1.placed", Vec::new(), b"raw".to_vec());
        }
        let inbox = test
            .inbox(&broker, Router::new().handler::<take_together>())
            .with_config(quick().concurrency(1).attempts_max(3));
        let panics = Arc::new(AtomicU32::new(0));
        let layer = Flawed {
            span,
            event,
            panics: panics.clone(),
        };
        let _listening = listen(tracing_subscriber::registry().with(layer));
        let report = inbox.drain().await.unwrap();
        assert_eq!(
            (report.handled, report.dead_letters),
            expected,
            "{span}: {report:?}"
        );
        let panics = panics.load(Ordering::SeqCst);
        if report.dead_letters > 0 {
            assert_eq!(panics, 3, "{span}");
        }
        assert!(panics > 0, "{span}");
        if readable == 0 {
            let letter = only_letter(&test, "together").await;
            assert_eq!(letter.raw_payload(), b"raw");
            let error = &letter.error;
            assert!(error.ends_with("panicked: flawed subscriber"), "{error}");
        }
    }
}

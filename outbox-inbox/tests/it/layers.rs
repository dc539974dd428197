//! Middleware, handler limits, older event versions, metrics.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::DomainEvent;
use outbox_core::retry::Backoff;
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{
    BoxFuture, Effect, Event, HandlerContext, HandlerError, Middleware, Next, Router, Tx, Upcasters,
    idempotent_handler,
};
use outbox_testing::MemoryBroker;
use serde::{Deserialize, Serialize};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{stop, within};
use crate::support::{OrderPlaced, Script, TestDb, book, only_letter, placed, publish, slow};

#[derive(Debug, Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn add(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

struct Named {
    name: &'static str,
    diary: Diary,
    refusals: Mutex<u32>,
}

impl Named {
    fn new(name: &'static str, diary: &Diary, refusals: u32) -> Self {
        Self {
            name,
            diary: diary.clone(),
            refusals: Mutex::new(refusals),
        }
    }
}

impl Middleware for Named {
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a>,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<Effect, HandlerError>> {
        Box::pin(async move {
            assert!(context.transaction().is_some());
            let (name, attempt) = (self.name, context.attempt());
            self.diary.add(format!("{name} begins attempt {attempt}"));
            let effect = next.run(context).await?;
            self.diary.add(format!("{name} ends"));
            let mut refusals = self.refusals.lock().unwrap();
            if *refusals > 0 {
                *refusals -= 1;
                return Err(HandlerError::retry(format!("{name} refuses")));
            }
            Ok(effect)
        })
    }
}

async fn the_first_middleware_is_the_outermost(test: TestDb) {
    let (broker, diary) = (MemoryBroker::new(), Diary::default());
    publish(&broker, &placed(1)).await;
    let told = diary.clone();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(Script::ok())
        .with_middleware(Named::new("outer", &diary, 0))
        .with_middleware(Named::new("inner", &diary, 0))
        .on_handled(move |_| told.add("handled".to_owned()));
    within(inbox.drain()).await.unwrap();
    assert_eq!(
        *diary.0.lock().unwrap(),
        [
            "outer begins attempt 1",
            "inner begins attempt 1",
            "inner ends",
            "outer ends",
            "handled"
        ]
    );
}

async fn an_error_of_a_middleware_rolls_back_and_uses_an_attempt(test: TestDb) {
    let (broker, diary, script) = (MemoryBroker::new(), Diary::default(), Script::ok());
    publish(&broker, &placed(1)).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script.clone())
        .with_middleware(Named::new("outer", &diary, 2));
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.failed), (1, 2), "{report:?}");
    assert_eq!(script.attempts(), [1, 2, 3]);
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (1, 1));
    assert_eq!(test.row().await, Some((1, 3)));
}

noting!(
    note_impatiently,
    consumer = "impatient",
    timeout = "50ms",
    attempts = 2,
    backoff = "1ms..2ms"
);

async fn handler_limits_override_inbox_limits(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Wait);
    put(&broker, &numbered(1, 1)).await;
    let hour = Duration::from_secs(3600);
    let config = slow()
        .attempts_max(1_000_000)
        .backoff(Backoff { min: hour, max: hour });
    let inbox = test
        .inbox(&broker, Router::new().handler::<note_impatiently>())
        .with_config(config)
        .with_state(orders.clone());
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.failed, report.dead_letters), (1, 1), "{report:?}");
    let letters = dead_letters(&test.db, "impatient").await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts), (1, 2));
    assert!(
        letters[0].error.contains("did not finish within 50ms"),
        "{}",
        letters[0].error
    );
    assert!(lines(&test, "impatient", 1).await.is_empty());
}

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "bill", name = "issued", version = 1)]
struct OldBill {
    #[domain_event(aggregate_id)]
    number: u64,
    euros: i64,
}

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "bill", name = "issued", version = 2)]
struct Bill {
    #[domain_event(aggregate_id)]
    number: u64,
    cents: i64,
}

impl Bill {
    fn sum(&self) -> String {
        format!("{}/{}", self.number, self.cents)
    }
}

fn upcasters() -> Upcasters {
    Upcasters::new().try_step(|old: OldBill| {
        let cents = old.euros.checked_mul(100).ok_or("too many euros")?;
        Ok::<_, &str>(Bill {
            number: old.number,
            cents,
        })
    })
}

async fn note_bill(consumer: &str, bill: &Bill, tx: &Tx<'_>) -> Result<(), HandlerError> {
    use sea_orm::ConnectionTrait as _;
    let Bill { number, cents } = bill;
    tx.execute_unprepared(&format!(
        "INSERT INTO noted (consumer, order_id, line, tx) VALUES ('{consumer}', {number}, {cents}, 0)"
    ))
    .await?;
    Ok(())
}

#[idempotent_handler(consumer = "bills")]
async fn collect(bill: Event<Bill>, tx: Tx<'_>) -> Result<(), HandlerError> {
    note_bill("bills", &bill, &tx).await
}

#[idempotent_handler(consumer = "bills_by_sum", strategy = key(Bill::sum))]
async fn collect_by_sum(bill: Event<Bill>, tx: Tx<'_>) -> Result<(), HandlerError> {
    note_bill("bills_by_sum", &bill, &tx).await
}

#[idempotent_handler(consumer = "bills_together", batch = 10)]
async fn collect_together(bills: Vec<Event<Bill>>, tx: Tx<'_>) -> Result<(), HandlerError> {
    for bill in &bills {
        note_bill("bills_together", bill, &tx).await?;
    }
    Ok(())
}

async fn old_versions_are_upcast(test: TestDb) {
    prepare(&test).await;
    let broker = MemoryBroker::new();
    publish(&broker, &OldBill { number: 1, euros: 7 }).await;
    publish(&broker, &Bill { number: 2, cents: 50 }).await;
    let hopeless = publish(
        &broker,
        &OldBill {
            number: 3,
            euros: i64::MAX,
        },
    )
    .await;
    publish(
        &broker,
        &Bill {
            number: 1,
            cents: 700,
        },
    )
    .await;
    let router = Router::new()
        .handler::<collect>()
        .handler::<collect_by_sum>()
        .handler::<collect_together>();
    let inbox = test.inbox(&broker, router).with_upcasters(upcasters());
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!(
        (report.handled, report.duplicates, report.dead_letters),
        (8, 1, 3),
        "{report:?}"
    );
    for (consumer, first) in [
        ("bills", vec![700, 700]),
        ("bills_by_sum", vec![700]),
        ("bills_together", vec![700, 700]),
    ] {
        assert_eq!(lines(&test, consumer, 1).await, first, "{consumer}");
        assert_eq!(lines(&test, consumer, 2).await, [50], "{consumer}");
        let letter = only_letter(&test, consumer).await;
        assert_eq!(
            (letter.event_id, letter.raw_payload()),
            (Some(hopeless.event_id), &hopeless.payload[..]),
            "{consumer}"
        );
        assert!(
            letter
                .error
                .contains("version 1 cannot be upcast: too many euros"),
            "{}",
            letter.error
        );
    }
}

on_every_backend!(
    the_first_middleware_is_the_outermost,
    an_error_of_a_middleware_rolls_back_and_uses_an_attempt,
    handler_limits_override_inbox_limits,
    old_versions_are_upcast,
);

#[cfg(feature = "metrics")]
mod metrics_of_an_inbox {
    use std::collections::HashMap;

    use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
    use outbox_inbox::telemetry::METRICS;
    use outbox_testing::eventually;

    use super::*;
    use crate::orders::copy;
    use crate::runtime::spawn;
    use crate::support::{Backend, Step, quick, with_ack_wait};

    noting!(note_counted, consumer = "counted", strategy = sequence);

    /// On one thread, so that its recorder sees all metrics.
    #[tokio::test]
    async fn running_inbox_counts_outcomes() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(&recorder);
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

        let mut seen = HashMap::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let name = key.key().name().to_owned();
            assert!(
                METRICS.iter().any(|metric| metric.name == name),
                "{name} is not documented"
            );
            let labels = key.key().labels().map(|label| label.value().to_owned());
            let name = [name].into_iter().chain(labels).collect::<Vec<_>>().join(" ");
            let count = match value {
                DebugValue::Counter(count) => count,
                DebugValue::Histogram(values) => values.len() as u64,
                DebugValue::Gauge(value) if value.into_inner() == 0.0 => 0,
                DebugValue::Gauge(_) => 1,
            };
            seen.insert(name, count);
        }
        for (name, count) in [
            ("inbox_received_total books", 5),
            ("inbox_handled_total books order.placed", 2),
            ("inbox_duplicates_total books order.placed", 1),
            ("inbox_retries_total books order.placed", 1),
            ("inbox_dead_letters_total books order.placed", 1),
            ("inbox_dead_letters_total books unreadable", 1),
            ("inbox_handler_seconds books order.placed handled", 2),
            ("inbox_handler_seconds books order.placed failed", 2),
            ("inbox_lag_seconds books order.placed", 2),
            ("inbox_handled_total counted order.placed", 2),
            ("inbox_gaps_total counted order.placed", 1),
            ("inbox_in_flight books", 0),
            ("inbox_in_flight counted", 0),
            ("inbox_blocked books", 0),
        ] {
            assert_eq!(seen.get(name), Some(&count), "{name}: {seen:#?}");
        }
    }

    noting!(note_shown, consumer = "shown");

    fn in_memory(snapshotter: &Snapshotter) -> (f64, f64) {
        let mut shown = (0.0, 0.0);
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            match (key.key().name(), value) {
                ("inbox_in_flight", DebugValue::Gauge(value)) => shown.0 = value.into_inner(),
                ("inbox_blocked", DebugValue::Gauge(value)) => shown.1 = value.into_inner(),
                _ => {}
            }
        }
        shown
    }

    #[tokio::test]
    async fn gauges_stay_current_while_no_job_ends() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(&recorder);
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
        orders
            .until("the message that waits", |state| state.runs == [(1, 1)])
            .await;
        eventually("a delivery in memory", async || in_memory(&snapshotter).0 > 0.0).await;
        for line in [1, 2] {
            put(&broker, &numbered(2, line)).await;
        }
        orders.rule(1, None);
        orders
            .until("the message that fails", |state| state.runs.contains(&(2, 1)))
            .await;
        eventually("two blocked deliveries", async || {
            let (in_flight, blocked) = in_memory(&snapshotter);
            in_flight >= 2.0 && blocked >= 2.0
        })
        .await;
        assert_eq!(orders.seen().runs_of(2), 1);
        stop((shutdown, run)).await;
    }
}

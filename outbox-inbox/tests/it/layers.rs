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
use crate::runtime::within;
use crate::support::{Script, TestDb, book, only_letter, placed, publish, slow};

type Diary = Arc<Mutex<Vec<String>>>;

struct Named {
    name: &'static str,
    diary: Diary,
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
            let tell = |text| self.diary.lock().unwrap().push(text);
            tell(format!("{name} begins attempt {attempt}"));
            let effect = next.run(context).await?;
            tell(format!("{name} ends"));
            match (name, attempt) {
                ("outer", 1) => Err(HandlerError::retry("not at first")),
                _ => Ok(effect),
            }
        })
    }
}

async fn first_middleware_is_outermost_and_its_errors_use_attempts(test: TestDb) {
    let (broker, diary, script) = (MemoryBroker::new(), Diary::default(), Script::ok());
    publish(&broker, &placed(1)).await;
    let told = diary.clone();
    let [outer, inner] = ["outer", "inner"].map(|name| Named {
        name,
        diary: diary.clone(),
    });
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script.clone())
        .with_middleware(outer)
        .with_middleware(inner)
        .on_handled(move |_| told.lock().unwrap().push("handled".to_owned()));
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.failed), (1, 1), "{report:?}");
    let run = |attempt| {
        [
            format!("outer begins attempt {attempt}"),
            format!("inner begins attempt {attempt}"),
            "inner ends".to_owned(),
            "outer ends".to_owned(),
        ]
    };
    let all = [&run(1)[..], &run(2), &["handled".to_owned()]].concat();
    assert_eq!(*diary.lock().unwrap(), all);
    assert_eq!(script.attempts(), [1, 2]);
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (1, 1));
    assert_eq!(test.row().await, Some((1, 2)));
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
    let router = Router::new().handler::<collect>().handler::<collect_by_sum>();
    let inbox = test.inbox(&broker, router).with_upcasters(upcasters());
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!(
        (report.handled, report.duplicates, report.dead_letters),
        (5, 1, 2),
        "{report:?}"
    );
    for (consumer, first) in [("bills", vec![700, 700]), ("bills_by_sum", vec![700])] {
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
    first_middleware_is_outermost_and_its_errors_use_attempts,
    handler_limits_override_inbox_limits,
    old_versions_are_upcast,
);

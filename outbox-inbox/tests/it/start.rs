//! Set-up errors that make an inbox refuse to start. Each error names the operator's next step.

use std::time::Duration;

use outbox_core::{DomainEvent, StartAt};
use outbox_inbox::{
    Effect, Event, FromContext, Handler, HandlerError, HandlerOptions, HandlerState, Inbox, InboxConfig,
    InboxError, Order, Registration, Router, Shape, StartError, StateMap, Strategy, idempotent_handler,
};
use outbox_sea_orm::TableNames;
use outbox_testing::{MemoryBroker, MemorySubscriber};
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, OrderPlaced, Script, TestDb, book, placed, publish, quick, reserve};

#[idempotent_handler(consumer = "books")]
async fn book_as_well(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

struct Mailer;

#[idempotent_handler(consumer = "mail")]
async fn send_mail(_event: Event<OrderPlaced>, _mailer: HandlerState<Mailer>) -> Result<(), HandlerError> {
    Ok(())
}

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "paid", unsequenced)]
struct OrderPaid {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

struct BadName;

impl Handler for BadName {
    const REGISTRATION: Registration = Registration {
        consumer: "not.a.name",
        handler: "bad_name",
        file: "bad.rs",
        ..FIRST
    };
}

const FIRST: Registration = Registration {
    consumer: "options",
    handler: "first",
    events: <OrderPlaced as DomainEvent>::DESCRIPTORS,
    file: "first.rs",
    line: 7,
    requires: &[<Event<OrderPlaced> as FromContext<'_>>::REQUIRES],
    shape: Shape {
        several: false,
        transactional: false,
        emits: false,
    },
    options: HandlerOptions::new(),
    invoke: |_| Box::pin(async { Ok(Effect::default()) }),
};

macro_rules! of_options {
    ($first:expr $(, $second:expr)?) => {{
        struct First;
        impl Handler for First {
            const REGISTRATION: Registration = Registration { options: $first, ..FIRST };
        }
        let router = Router::new().handler::<First>();
        $(
            struct Second;
            impl Handler for Second {
                const REGISTRATION: Registration = Registration {
                    handler: "second",
                    file: "second.rs",
                    events: <OrderPaid as DomainEvent>::DESCRIPTORS,
                    options: $second,
                    ..FIRST
                };
            }
            let router = router.handler::<Second>();
        )?
        router
    }};
}

const DEFAULTS: HandlerOptions = HandlerOptions::new();
const SEQUENCE: HandlerOptions = DEFAULTS.strategy(Strategy::Sequence { gap: None });

const UPSIDE_DOWN: outbox_core::retry::Backoff = outbox_core::retry::Backoff {
    min: Duration::from_secs(2),
    max: Duration::from_secs(1),
};

fn checked(router: &Router) -> Result<(), StartError> {
    let mut state = StateMap::new();
    state.insert(Script::ok());
    router.check(&state)
}

#[track_caller]
fn refused(router: Router, parts: &[&str]) {
    let error = checked(&router).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.problems().len(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn inconsistent_handlers_are_refused() {
    let two = [book::REGISTRATION, book_as_well::REGISTRATION];
    let places = two.map(|handler| format!("({}:{})", handler.file, handler.line));
    refused(Router::new(), &["no handlers are linked", "link_handlers!"]);
    refused(
        Router::new().handler::<book>().handler::<book_as_well>(),
        &[
            "event `order.placed` version 1 has two handlers in consumer `books`: `",
            &places[0],
            &places[1],
        ],
    );
    refused(
        Router::new().handler::<send_mail>(),
        &[
            "start::send_mail` (",
            "start.rs:",
            "needs `HandlerState<",
            "::Mailer>`; provide it with `Inbox::with_state`",
        ],
    );
    let name = "consumer `not.a.name` of handler `bad_name` (bad.rs:7)";
    refused(Router::new().handler::<BadName>(), &[name]);
    let disagreeing = of_options!(DEFAULTS, DEFAULTS.order(Order::Strict));
    let places = [
        "`first` (first.rs:7) has Aggregate",
        "`second` (second.rs:7) has Strict",
    ];
    refused(disagreeing, &places);
    let unsequenced = "`strategy = sequence` of handler `second` (second.rs:7) cannot work: event `order.paid` is unsequenced";
    refused(of_options!(SEQUENCE, SEQUENCE), &[unsequenced]);
    let mixed = "`first` (first.rs:7) has `sequence` and `second` (second.rs:7) has not";
    refused(of_options!(SEQUENCE, DEFAULTS), &[mixed]);
}

#[test]
fn invalid_options_are_refused() {
    for (router, option) in [
        (of_options!(DEFAULTS.batch(0)), "batch"),
        (of_options!(DEFAULTS.batch(1_001)), "batch"),
        (of_options!(DEFAULTS.attempts_max(0)), "attempts"),
        (of_options!(DEFAULTS.timeout(Duration::ZERO)), "timeout"),
        (of_options!(DEFAULTS.backoff(UPSIDE_DOWN)), "backoff"),
    ] {
        refused(router, &[&format!("`{option}` of handler `first` (first.rs:7) ")]);
    }
}

#[test]
fn consistent_handlers_are_accepted() {
    for router in [
        of_options!(DEFAULTS, DEFAULTS),
        of_options!(DEFAULTS.batch(1)),
        of_options!(DEFAULTS.batch(1_000)),
        Router::new()
            .handler::<book>()
            .handler::<book>()
            .handler::<reserve>(),
    ] {
        checked(&router).unwrap();
    }
    let consumers = Router::registered().consumers();
    for name in ["books", "stock", "mail"] {
        assert!(consumers.contains(&name), "{consumers:?}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let router = Router::new()
        .handler::<book>()
        .handler::<book_as_well>()
        .handler::<send_mail>()
        .handler::<BadName>();
    let error = router.check(&StateMap::new()).unwrap_err();
    assert_eq!(error.problems().len(), 4, "{error}");
    assert!(error.to_string().starts_with("4 problems\n1. "), "{error}");
}

type TestInbox = Inbox<MemorySubscriber>;

async fn start(change: impl FnOnce(TestInbox) -> TestInbox) -> StartError {
    let test = TestDb::open(Backend::SqliteMemory, "start").await.unwrap();
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .with_state(Script::ok());
    match change(inbox).run(CancellationToken::new()).await {
        Err(InboxError::Start(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let config = InboxConfig::default().handler_timeout(Duration::from_secs(60));
    let shop = TableNames::new().with_schema("shop").unwrap();
    for (error, part) in [
        (
            start(|inbox| inbox.with_consumers(["bocks"])).await,
            "consumer `bocks` has no handlers in this program; consumers with handlers: `books`",
        ),
        (
            start(|inbox| inbox.with_start("bocks", StartAt::New)).await,
            "consumer `bocks` has no handlers in this program; consumers with handlers: `books`",
        ),
        (start(|inbox| inbox.with_config(config)).await, "ack_wait"),
        (start(|inbox| inbox.with_names(shop)).await, "schema"),
    ] {
        assert_eq!(error.problems().len(), 1, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn unlinked_handler_crate_is_found_at_the_start() {
    let error = start(|inbox| inbox.expect_handlers(["books", "mail_handlers", "book"])).await;
    let text = error.to_string();
    assert_eq!(error.problems().len(), 2, "{text}");
    for part in [
        "no handler of `mail_handlers` is linked",
        "link_handlers!",
        "support::book`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn linked_expected_handlers_change_nothing() {
    let path = <book as Handler>::REGISTRATION.handler;
    let (module, _) = path.rsplit_once("::").unwrap();
    let krate = path.split("::").next().unwrap();
    let test = TestDb::open(Backend::SqliteMemory, "expected").await.unwrap();
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .with_state(Script::ok())
        .expect_handlers(["books", path])
        .expect_handlers([module, krate]);
    assert_eq!(inbox.drain().await.unwrap().handled, 0);
}

#[tokio::test]
async fn retention_below_stream_retention_is_refused() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let test = TestDb::open(Backend::SqliteMemory, "retention").await.unwrap();
    let run = async |stream_retention, retention| {
        let broker = MemoryBroker::new().with_retention(stream_retention);
        publish(&broker, &placed(1)).await;
        let inbox = test
            .inbox(&broker, Router::new().handler::<book>())
            .with_config(quick().retention(retention))
            .with_state(Script::ok());
        (inbox.drain().await, broker.deliveries("books"))
    };
    let (outcome, deliveries) = run(Some(7 * DAY), 7 * DAY).await;
    let Err(InboxError::Start(error)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("InboxConfig::retention"), "{error}");
    assert_eq!(deliveries, 0);
    for (stream_retention, retention) in [(Some(7 * DAY), 8 * DAY), (None, 8 * DAY)] {
        let (outcome, deliveries) = run(stream_retention, retention).await;
        assert_eq!((outcome.unwrap().handled, deliveries), (1, 1));
    }
}

#[tokio::test]
async fn missing_tables_are_refused() {
    for backend in [Backend::SqliteMemory, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "missing_tables").await else {
            continue;
        };
        let inbox = |router| test.inbox(&MemoryBroker::new(), router).with_state(Script::ok());
        let error = inbox(Router::new().handler::<book>()).drain().await.unwrap_err();
        assert!(matches!(error, InboxError::Tables(_)), "{backend:?}: {error}");
        assert!(error.to_string().contains("run the migration"), "{error}");
        outbox_inbox::migrate(&test.db).await.unwrap();
        let error = inbox(Router::new().handler::<book>()).drain().await.unwrap_err();
        let InboxError::Start(error) = error else {
            panic!("{backend:?}: {error:?}")
        };
        let tables: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
        assert!(
            tables[0].contains("outbox_messages") && tables[1].contains("outbox_aggregates"),
            "{tables:?}"
        );
        inbox(Router::new().handler::<reserve>()).drain().await.unwrap();
    }
}

#[tokio::test]
async fn only_the_chosen_consumers_are_checked_and_run() {
    let test = TestDb::open(Backend::SqliteMemory, "chosen").await.unwrap();
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let router = Router::new().handler::<reserve>().handler::<send_mail>();
    let inbox = test.inbox(&broker, router).with_consumers(["stock"]);
    assert_eq!(inbox.drain().await.unwrap().handled, 1);
    assert_eq!((broker.deliveries("stock"), broker.deliveries("mail")), (1, 0));
}

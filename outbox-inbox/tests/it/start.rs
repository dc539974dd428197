//! Guarantee G10: a mistake that can be known at the start is reported at the start, with its remedy.

use std::time::Duration;

use outbox_core::DomainEvent;
use outbox_core::retry::Backoff;
use outbox_inbox::{
    Event, FromContext, Handler, HandlerError, HandlerOptions, HandlerState, Inbox, InboxConfig, InboxError,
    IntoEffect as _, OnDuplicate, Order, Problem, Registration, Router, Shape, StateMap, Strategy,
    idempotent_handler,
};
use outbox_sea_orm::TableNames;
use outbox_testing::MemoryBroker;
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, OrderPlaced, Script, TestDb, book, reserve};

#[idempotent_handler(consumer = "books")]
async fn book_as_well(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

struct Mailer;

#[idempotent_handler(consumer = "mail")]
async fn send_mail(_event: Event<OrderPlaced>, _mailer: HandlerState<Mailer>) -> Result<(), HandlerError> {
    Ok(())
}

/// The attribute refuses such a name; a hand-written registration does not.
struct BadName;

impl Handler for BadName {
    const REGISTRATION: Registration = Registration {
        consumer: "not.a.name",
        handler: "bad_name",
        events: <OrderPlaced as DomainEvent>::DESCRIPTORS,
        file: "bad.rs",
        line: 7,
        requires: &[<Event<OrderPlaced> as FromContext<'_>>::REQUIRES],
        shape: Shape {
            several: false,
            transactional: false,
            replies: false,
            emits: false,
        },
        options: HandlerOptions::new(),
        invoke: |_| Box::pin(async { ().into_effect() }),
    };
}

fn problems(router: Router) -> Vec<Problem> {
    let mut state = StateMap::new();
    state.insert(Script::ok());
    router
        .check(&state)
        .map_or_else(|error| error.problems().to_vec(), |()| Vec::new())
}

#[test]
fn no_handlers() {
    assert!(matches!(
        problems(Router::new()).as_slice(),
        [Problem::NoHandlers]
    ));
}

#[test]
fn two_handlers_for_one_event() {
    let found = problems(Router::new().handler::<book>().handler::<book_as_well>());
    let [
        problem @ Problem::DuplicateHandlers {
            event_type,
            first,
            second,
            ..
        },
    ] = found.as_slice()
    else {
        panic!("{found:?}");
    };
    assert_eq!(event_type, "order.placed");
    assert_ne!((first.file, first.line), (second.file, second.line));
    let text = problem.to_string();
    assert!(
        text.starts_with("event `order.placed` version 1 has two handlers in consumer `books`: `"),
        "{text}"
    );
    for handler in [first, second] {
        assert!(
            text.contains(&format!("({}:{})", handler.file, handler.line)),
            "{text}"
        );
    }
}

#[test]
fn one_handler_named_twice_is_one() {
    assert!(
        problems(
            Router::new()
                .handler::<book>()
                .handler::<book>()
                .handler::<reserve>()
        )
        .is_empty()
    );
}

#[test]
fn state_that_nobody_provides() {
    let found = problems(Router::new().handler::<send_mail>());
    let [problem @ Problem::MissingState { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    let text = problem.to_string();
    assert!(
        text.contains("start::send_mail`") && text.contains("start.rs:"),
        "{text}"
    );
    assert!(
        text.contains("needs `HandlerState<")
            && text.contains("::Mailer>`; provide it with `Inbox::with_state`"),
        "{text}"
    );
}

#[test]
fn a_malformed_consumer_name() {
    let found = problems(Router::new().handler::<BadName>());
    let [problem @ Problem::ConsumerName { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(
        problem
            .to_string()
            .starts_with("consumer `not.a.name` of handler `bad_name` (bad.rs:7)"),
        "{problem}"
    );
}

#[test]
fn all_problems_are_reported_at_once() {
    let router = Router::new()
        .handler::<book>()
        .handler::<book_as_well>()
        .handler::<send_mail>()
        .handler::<BadName>();
    let error = router.check(&StateMap::new()).unwrap_err();
    // Both `book` and `send_mail` lack their state.
    assert_eq!(error.problems().len(), 4, "{error}");
    assert!(error.to_string().starts_with("4 problems\n1. "), "{error}");
}

/// All handlers of this test binary are linked. A real program sees the handlers of the crates that it names.
#[test]
fn linked_handlers_are_found() {
    let consumers = Router::registered().consumers();
    for name in ["books", "stock", "mail"] {
        assert!(consumers.contains(&name), "{consumers:?}");
    }
}

/// `order.paid`: of the same aggregate as `order.placed`, and without a sequence.
#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "paid", unsequenced)]
struct OrderPaid {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

/// The problems of two hand-written handlers, because the attribute would refuse some of them. The first handles `order.placed`, the second
/// `order.paid`.
macro_rules! of_options {
    ($first:expr $(, $second:expr)?) => {{
        struct First;
        impl Handler for First {
            const REGISTRATION: Registration = Registration {
                handler: "first",
                file: "first.rs",
                events: <OrderPlaced as DomainEvent>::DESCRIPTORS,
                options: $first,
                ..BadName::REGISTRATION
            };
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
                    ..BadName::REGISTRATION
                };
            }
            let router = router.handler::<Second>();
        )?
        let mut found = problems(router);
        found.retain(|problem| !matches!(problem, Problem::ConsumerName { .. }));
        found
    }};
}

const DEFAULTS: HandlerOptions = HandlerOptions::new();
const NATURAL: HandlerOptions = DEFAULTS.strategy(Strategy::Natural);
const SEQUENCE: HandlerOptions = DEFAULTS.strategy(Strategy::Sequence { gap: None });

#[test]
fn handlers_that_disagree_on_order() {
    assert!(of_options!(DEFAULTS, DEFAULTS).is_empty());
    let found = of_options!(DEFAULTS, DEFAULTS.order(Order::Strict));
    let [problem @ Problem::Orders { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    let text = problem.to_string();
    for part in [
        "`first` (first.rs:7) has Aggregate",
        "`second` (second.rs:7) has Strict",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_sequence_of_unsequenced_events() {
    let found = of_options!(SEQUENCE, SEQUENCE);
    let [problem @ Problem::Option { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(
        problem.to_string().starts_with(
            "`strategy = sequence` of handler `second` (second.rs:7) cannot work: event `order.paid` is unsequenced"
        ),
        "{problem}"
    );
}

#[test]
fn a_sequence_beside_other_strategies() {
    let found = of_options!(SEQUENCE, DEFAULTS);
    let [problem @ Problem::MixedSequence { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(
        problem
            .to_string()
            .contains("`first` (first.rs:7) has `sequence` and `second` (second.rs:7) has not"),
        "{problem}"
    );
}

#[test]
fn options_that_cannot_work() {
    for (found, option) in [
        (
            of_options!(NATURAL.on_duplicate(OnDuplicate::Result)),
            "`on_duplicate = result`",
        ),
        (
            of_options!(NATURAL.on_duplicate(OnDuplicate::Reemit)),
            "`on_duplicate = reemit`",
        ),
        // The handler returns nothing.
        (
            of_options!(DEFAULTS.on_duplicate(OnDuplicate::Result)),
            "`on_duplicate = result`",
        ),
        (of_options!(DEFAULTS.batch(0)), "`batch`"),
        (of_options!(DEFAULTS.batch(1_001)), "`batch`"),
        (of_options!(DEFAULTS.attempts_max(0)), "`attempts`"),
        (of_options!(DEFAULTS.timeout(Duration::ZERO)), "`timeout`"),
        (of_options!(DEFAULTS.backoff(UPSIDE_DOWN)), "`backoff`"),
    ] {
        let [problem @ Problem::Option { .. }] = found.as_slice() else {
            panic!("{option}: {found:?}")
        };
        let text = problem.to_string();
        assert!(
            text.starts_with(&format!("{option} of handler `first` (first.rs:7) ")),
            "{text}"
        );
    }
    for found in [
        of_options!(DEFAULTS.on_duplicate(OnDuplicate::Reemit)),
        of_options!(DEFAULTS.batch(1)),
        of_options!(DEFAULTS.batch(1_000)),
    ] {
        assert!(found.is_empty(), "{found:?}");
    }
}

#[idempotent_handler(consumer = "receipts")]
async fn answer_several(_events: Vec<Event<OrderPlaced>>) -> Result<outbox_inbox::Reply<u64>, HandlerError> {
    Ok(outbox_inbox::Reply(7))
}

/// A result would belong to the first message of the batch, and the other messages would have none.
#[test]
fn one_result_of_several_messages() {
    let found = problems(Router::new().handler::<answer_several>());
    let [problem @ Problem::Option { .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    let text = problem.to_string();
    assert!(
        text.starts_with("`Vec<Event<T>>` of handler `") && text.contains("take `Event<T>` with `batch`"),
        "{text}"
    );
}

const UPSIDE_DOWN: Backoff = Backoff {
    min: Duration::from_secs(2),
    max: Duration::from_secs(1),
};

async fn start(
    change: impl FnOnce(Inbox<outbox_testing::MemorySubscriber>) -> Inbox<outbox_testing::MemorySubscriber>,
) -> InboxError {
    let test = TestDb::open(Backend::SqliteMemory, "start").await.unwrap();
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .with_state(Script::ok());
    change(inbox).run(CancellationToken::new()).await.unwrap_err()
}

#[tokio::test]
async fn an_unknown_consumer_is_refused() {
    let error = start(|inbox| inbox.with_consumers(["bocks"])).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(error.problems(), [Problem::UnknownConsumer { .. }]));
    assert_eq!(
        error.to_string(),
        "consumer `bocks` has no handlers in this program; there are `books`"
    );
}

/// The linker drops a crate that nothing names; the handlers of the others run all the same.
#[tokio::test]
async fn a_handler_crate_that_is_not_linked_beside_linked_ones_is_found_at_the_start() {
    let error = start(|inbox| inbox.expect_handlers(["books", "mail_handlers", "book"])).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    let text = error.to_string();
    assert!(
        matches!(
            error.problems(),
            [Problem::NotLinked { .. }, Problem::NotLinked { .. }]
        ),
        "{text}"
    );
    assert!(
        text.contains("no handler of `mail_handlers` is linked") && text.contains("link_handlers!"),
        "{text}"
    );
    assert!(
        text.contains("support::book`"),
        "the linked ones are listed: {text}"
    );
}

#[tokio::test]
async fn expected_handlers_that_are_linked_change_nothing() {
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
async fn a_handler_timeout_beyond_ack_wait_is_refused() {
    let config = InboxConfig::default().handler_timeout(Duration::from_secs(60));
    let error = start(|inbox| inbox.with_config(config)).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(
        matches!(error.problems(), [Problem::Config(text)] if text.contains("ack_wait")),
        "{error}"
    );
}

#[idempotent_handler(consumer = "outside", strategy = external)]
async fn call_out(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test]
async fn a_store_that_nobody_provides_is_refused() {
    let error = start(|inbox| inbox.with_router(Router::new().handler::<call_out>())).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(
        error
            .to_string()
            .starts_with("`strategy = external` of handler `")
            && error
                .to_string()
                .ends_with("give one to `Inbox::with_dedup_store`"),
        "{error}"
    );
}

/// The stream keeps messages longer than the inbox remembers them, so a replay of the stream would repeat effects.
#[tokio::test]
async fn an_inbox_that_forgets_before_the_stream_is_refused() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let test = TestDb::open(Backend::SqliteMemory, "retention").await.unwrap();
    let run = async |stream_retention, retention| {
        let broker = MemoryBroker::new().with_retention(stream_retention);
        crate::support::publish(&broker, &crate::support::placed(1)).await;
        let inbox = test
            .inbox(&broker, Router::new().handler::<book>())
            .with_config(crate::support::quick().retention(retention))
            .with_state(Script::ok());
        (inbox.drain().await, broker.deliveries("books"))
    };
    let (outcome, deliveries) = run(Some(7 * DAY), 7 * DAY).await;
    let Err(InboxError::Start(error)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        matches!(error.problems(), [Problem::RetentionTooShort { .. }]),
        "{error}"
    );
    assert_eq!(deliveries, 0);
    for (stream_retention, retention) in [(Some(7 * DAY), 8 * DAY), (None, 8 * DAY)] {
        let (outcome, deliveries) = run(stream_retention, retention).await;
        assert_eq!((outcome.unwrap().handled, deliveries), (1, 1));
    }
}

#[tokio::test]
async fn names_that_the_database_cannot_hold_are_refused() {
    let error = start(|inbox| inbox.with_names(TableNames::new().with_schema("shop").unwrap())).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(error.problems(), [Problem::Names(_)]), "{error}");
}

#[tokio::test]
async fn missing_tables_are_refused() {
    for backend in [
        Backend::Sqlite,
        Backend::SqliteMemory,
        Backend::Postgres,
        Backend::MariaDb,
    ] {
        let Some(test) = TestDb::empty(backend, "missing_tables").await else {
            continue;
        };
        let inbox = test
            .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
            .with_state(Script::ok());
        let error = inbox.run(CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, InboxError::Tables(_)), "{backend:?}: {error}");
        assert!(error.to_string().contains("run the migration"), "{error}");
    }
}

/// Another process runs the other consumers, so this process ignores their missing state.
#[tokio::test]
async fn only_the_chosen_consumers_are_checked_and_run() {
    let test = TestDb::open(Backend::SqliteMemory, "chosen").await.unwrap();
    let broker = MemoryBroker::new();
    crate::support::publish(&broker, &crate::support::placed(1)).await;
    let router = Router::new().handler::<reserve>().handler::<send_mail>();
    let report = test
        .inbox(&broker, router)
        .with_consumers(["stock"])
        .drain()
        .await
        .unwrap();
    assert_eq!(report.handled, 1);
    assert_eq!((broker.deliveries("stock"), broker.deliveries("mail")), (1, 0));
}

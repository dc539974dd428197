//! G10: what can be known to fail fails at the start, with what to do.

use std::time::Duration;

use outbox_core::testing::MemoryBroker;
use outbox_inbox::{
    Event, FromContext, Handler, HandlerError, Inbox, InboxConfig, InboxError, Problem, Registration, Router,
    State, StateMap, idempotent_handler,
};
use outbox_sea_orm::TableNames;
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, OrderPlaced, Script, TestDb, book, reserve};

#[idempotent_handler(consumer = "books")]
async fn book_as_well(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

struct Mailer;

#[idempotent_handler(consumer = "mail")]
async fn send_mail(_event: Event<OrderPlaced>, _mailer: State<Mailer>) -> Result<(), HandlerError> {
    Ok(())
}

/// The attribute refuses such a name; a registration by hand gets here.
struct BadName;

impl Handler for BadName {
    const REGISTRATION: Registration = Registration {
        consumer: "not.a.name",
        handler: "bad_name",
        events: <OrderPlaced as outbox_core::DomainEvent>::DESCRIPTORS,
        file: "bad.rs",
        line: 7,
        requires: &[<Event<OrderPlaced> as FromContext<'_>>::REQUIRES],
        invoke: |_| Box::pin(async { Ok(()) }),
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
        text.contains("needs `State<") && text.contains("::Mailer>`; provide it with `Inbox::state`"),
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

/// All handlers of this test binary are linked; a real one sees those of the crates it names.
#[test]
fn linked_handlers_are_found() {
    let consumers = Router::registered().consumers();
    for name in ["books", "stock", "mail"] {
        assert!(consumers.contains(&name), "{consumers:?}");
    }
}

async fn start(
    change: impl FnOnce(Inbox<outbox_core::testing::MemorySource>) -> Inbox<outbox_core::testing::MemorySource>,
) -> InboxError {
    let test = TestDb::open(Backend::SqliteMemory, "start").await.unwrap();
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .state(Script::ok());
    change(inbox).run(CancellationToken::new()).await.unwrap_err()
}

#[tokio::test]
async fn an_unknown_consumer_is_refused() {
    let error = start(|inbox| inbox.consumers(["bocks"])).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(error.problems(), [Problem::UnknownConsumer { .. }]));
    assert_eq!(
        error.to_string(),
        "consumer `bocks` has no handlers in this program; there are `books`"
    );
}

#[tokio::test]
async fn a_handler_timeout_beyond_ack_wait_is_refused() {
    let config = InboxConfig::default().handler_timeout(Duration::from_secs(60));
    let error = start(|inbox| inbox.config(config)).await;
    let InboxError::Start(error) = error else {
        panic!("{error}")
    };
    assert!(
        matches!(error.problems(), [Problem::Config(text)] if text.contains("ack_wait")),
        "{error}"
    );
}

#[tokio::test]
async fn names_that_the_database_cannot_hold_are_refused() {
    let error = start(|inbox| inbox.names(TableNames::new().with_schema("shop").unwrap())).await;
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
            .state(Script::ok());
        let error = inbox.run(CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, InboxError::Tables(_)), "{backend:?}: {error}");
        assert!(error.to_string().contains("run the migration"), "{error}");
    }
}

/// Another process runs the other consumers, so what they lack is no concern of this one.
#[tokio::test]
async fn only_the_chosen_consumers_are_checked_and_run() {
    let test = TestDb::open(Backend::SqliteMemory, "chosen").await.unwrap();
    let broker = MemoryBroker::new();
    crate::support::publish(&broker, &crate::support::placed(1)).await;
    let router = Router::new().handler::<reserve>().handler::<send_mail>();
    let report = test
        .inbox(&broker, router)
        .consumers(["stock"])
        .drain_until_idle()
        .await
        .unwrap();
    assert_eq!(report.handled, 1);
    assert_eq!((broker.deliveries("stock"), broker.deliveries("mail")), (1, 0));
}

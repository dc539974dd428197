//! Receiving, ordering, outages and shutdown.

use std::time::Duration;

use outbox_core::Subscriber;
use outbox_inbox::{Inbox, InboxReport, Router};
use outbox_testing::MemoryBroker;
use sea_orm::{ConnectionTrait as _, Statement};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::on_every_backend;
use crate::support::{
    Backend, OrderPlaced, SOON, Script, Step, TestDb, book, placed, publish, quick, slow, with_ack_wait,
};

pub(crate) type Running = (CancellationToken, JoinHandle<InboxReport>);

pub(crate) fn spawn<S: Subscriber>(inbox: Inbox<S>) -> Running {
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let run = tokio::spawn(async move { inbox.run(token).await.unwrap() });
    (shutdown, run)
}

pub(crate) async fn stop((shutdown, run): Running) -> InboxReport {
    shutdown.cancel();
    within(run).await.unwrap()
}

pub(crate) async fn finish(broker: &MemoryBroker, consumer: &str, running: Running) -> InboxReport {
    within(broker.until_idle(consumer)).await;
    stop(running).await
}

pub(crate) async fn until_delivered(broker: &MemoryBroker, consumer: &str, deliveries: u64) {
    within(async {
        while broker.deliveries(consumer) < deliveries {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("in time")
}

async fn waiting_and_working_messages_are_not_delivered_again(test: TestDb) {
    let broker = MemoryBroker::new();
    for line in 0..4 {
        publish(&broker, &OrderPlaced { order_id: 1, line }).await;
    }
    let script = Script::new([], Step::Gate);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(with_ack_wait(15))
        .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    // Three messages in a row take longer than `ack_wait`. The handler's time limit, 13.5 s, leaves
    // room for a stalled machine.
    for _ in 0..4 {
        script.started().await;
        tokio::time::sleep(Duration::from_millis(5_100)).await;
        script.release(1);
    }
    within(broker.until_idle("books")).await;
    assert_eq!(broker.deliveries("books"), 4);
    assert_eq!(stop((shutdown, run)).await.handled, 4);
}

async fn a_database_outage_uses_no_attempts(test: TestDb) {
    let broker = MemoryBroker::new();
    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(quick().attempts_max(1))
        .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    publish(&broker, &OrderPlaced { order_id: 1, line: 0 }).await;
    script.started().await;
    within(broker.until_idle("books")).await;

    test.execute("ALTER TABLE inbox_messages RENAME TO inbox_messages_gone")
        .await;
    for line in 1..10 {
        publish(&broker, &OrderPlaced { order_id: 1, line }).await;
    }
    until_delivered(&broker, "books", 10).await;
    assert_eq!(script.runs(), 1);
    test.execute("ALTER TABLE inbox_messages_gone RENAME TO inbox_messages")
        .await;

    let report = finish(&broker, "books", (shutdown, run)).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (10, 0, 0),
        "{report:?}"
    );
    assert_eq!(script.lines(), (0..10).map(|line| (1, line)).collect::<Vec<_>>());
    assert_eq!(script.attempts(), [1; 10]);
    assert_eq!(
        test.int("SELECT CAST(sum(attempts) AS BIGINT) FROM inbox_messages")
            .await,
        0
    );
}

on_every_backend!(without memory: waiting_and_working_messages_are_not_delivered_again);

pub(crate) use outage::kill_other_sessions;

mod outage {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        a_database_outage_uses_no_attempts(TestDb::open(Backend::Sqlite, "outage").await.unwrap()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        let Some(test) = TestDb::open(Backend::Postgres, "outage").await else {
            return;
        };
        a_database_outage_uses_no_attempts(test).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_busy_sqlite_is_waited_for() {
        use sea_orm::TransactionTrait as _;
        let test = TestDb::open(Backend::Sqlite, "busy").await.unwrap();
        let impatient = test
            .connect_with(|options| {
                options.map_sqlx_sqlite_opts(|options| options.busy_timeout(Duration::from_millis(5)));
            })
            .await;
        let writer = test.db.begin().await.unwrap();
        writer
            .execute_unprepared("INSERT INTO markers (id) VALUES (1)")
            .await
            .unwrap();
        let harness = outbox_inbox::testing::Harness::new(impatient)
            .with_state(Script::ok())
            .with_config(quick());
        let event = placed(1);
        let delivery = harness.deliver::<book>(&event);
        tokio::pin!(delivery);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), &mut delivery)
                .await
                .is_err(),
            "it waits"
        );
        writer.commit().await.unwrap();
        assert_eq!(
            within(delivery).await.unwrap(),
            outbox_inbox::testing::Outcome::Handled
        );
        assert_eq!(test.row().await, Some((1, 0)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_session_uses_no_attempt() {
        for backend in [Backend::Postgres, Backend::MariaDb] {
            let Some(test) = TestDb::open(backend, "killed").await else {
                continue;
            };
            let broker = MemoryBroker::new();
            publish(&broker, &placed(1)).await;
            let script = Script::new([Step::Gate], Step::Ok);
            let config = slow().attempts_max(1);
            let inbox = Inbox::new(test.connect_again().await, broker.subscriber())
                .with_router(Router::new().handler::<book>())
                .with_config(config)
                .with_state(script.clone());
            let (shutdown, run) = spawn(inbox);
            script.started().await;
            kill_other_sessions(&test).await;
            script.release(1);
            let report = finish(&broker, "books", (shutdown, run)).await;
            assert_eq!(
                (report.handled, report.failed, report.dead_letters),
                (1, 0, 0),
                "{backend:?} {report:?}"
            );
            assert_eq!(script.runs(), 2);
            assert_eq!(test.effects("books", 1).await, 1);
        }
    }

    /// Terminates at least the database sessions of this test that have an open transaction.
    pub(crate) async fn kill_other_sessions(test: &TestDb) {
        match test.backend {
            Backend::Postgres => {
                test.execute(
                    "DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_locks \
                     WHERE relation = 'inbox_messages'::regclass AND pid <> pg_backend_pid(); END $$",
                )
                .await;
            }
            _ => {
                let sql = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                           WHERE db = DATABASE() AND id <> CONNECTION_ID()";
                let statement = Statement::from_string(test.sql_backend(), sql);
                for row in test.db.query_all_raw(statement).await.unwrap() {
                    let id: i64 = row.try_get_by_index(0).unwrap();
                    let _ = test.db.execute_unprepared(&format!("KILL {id}")).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_broker_outage_is_waited_for() {
    let test = TestDb::open(Backend::SqliteMemory, "broker_outage")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    broker.set_down(true);
    let script = Script::ok();
    let (shutdown, run) = spawn(
        test.inbox(&broker, Router::new().handler::<book>())
            .with_state(script.clone()),
    );
    for order in 0..3 {
        broker.set_down(false);
        publish(&broker, &placed(order)).await;
        script.started().await;
        within(broker.until_idle("books")).await;
        broker.set_down(true);
    }
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.failed), (3, 0));
}

async fn shutdown_cancels_endless_handlers(test: TestDb) {
    for failures in [0, 1] {
        let broker = MemoryBroker::new();
        publish(&broker, &placed(failures)).await;
        let steps = [Step::Fail, Step::Hang].into_iter().skip(1 - failures as usize);
        let script = Script::new(steps, Step::Ok);
        let router = Router::new().handler::<book>();
        let config = quick()
            .shutdown_timeout(Duration::from_millis(50))
            .ack_wait(SOON * 2)
            .handler_timeout(SOON);
        let (shutdown, run) = spawn(
            test.inbox(&broker, router.clone())
                .with_config(config)
                .with_state(script.clone()),
        );
        for _ in 0..=failures {
            script.started().await;
        }
        let report = stop((shutdown, run)).await;
        assert_eq!(
            (report.handled, report.returned, report.failed),
            (0, 1, failures),
            "{report:?}"
        );
        assert_eq!(test.effects("books", failures).await, 0);
        assert_eq!(test.row().await, (failures > 0).then_some((0, 1)));
        within(test.inbox(&broker, router).with_state(script).drain())
            .await
            .unwrap();
        assert_eq!(test.effects("books", failures).await, 1);
        assert_eq!(test.row().await, Some((1, 1 + failures.cast_signed())));
        test.execute("DELETE FROM inbox_messages").await;
    }
}

on_every_backend!(shutdown_cancels_endless_handlers);

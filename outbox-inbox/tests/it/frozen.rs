//! A process that stands still in the middle of a transaction, while another one is given a message for the first time that it holds, as with two copies on
//! the stream. PostgreSQL only: the other databases never wait without end.

use outbox_core::testing::{MemoryBroker, eventually};
use outbox_inbox::Router;
use sea_orm::{ConnectionTrait as _, Statement, TransactionTrait as _};

use crate::runtime::{spawn, within};
use crate::support::{Backend, Script, TestDb, book, int, placed, publish, slow};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_delivery_does_not_wait_for_a_frozen_process_without_end() {
    let Some(test) = TestDb::open(Backend::Postgres, "frozen").await else {
        return;
    };
    let broker = MemoryBroker::new();
    let message = publish(&broker, &placed(1)).await;
    // What the frozen process has done so far.
    let frozen_pool = test.connect_again().await;
    let frozen = frozen_pool.begin().await.unwrap();
    let row = frozen
        .query_one_raw(Statement::from_string(
            test.sql_backend(),
            "SELECT pg_backend_pid()::int8",
        ))
        .await
        .unwrap();
    let pid: i64 = row.unwrap().try_get_by_index(0).unwrap();
    let claim = format!(
        "INSERT INTO inbox_messages (consumer, id, status, attempts, processed_at, expires_at) \
         VALUES ('books', '{}', 1, 0, now(), now() + interval '1 hour')",
        message.event_id
    );
    frozen.execute_unprepared(&claim).await.unwrap();

    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(slow())
        .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    let waits_since = format!(
        "SELECT coalesce(max((extract(epoch FROM query_start) * 1000000)::int8), 0) FROM pg_stat_activity \
         WHERE {pid} = ANY(pg_blocking_pids(pid))"
    );
    let mut first = 0;
    eventually("a claim that waits", async || {
        first = int(&test.db, &waits_since).await;
        first > 0
    })
    .await;
    // It gives up, and the message comes again.
    eventually("another claim that waits", async || {
        int(&test.db, &waits_since).await > first
    })
    .await;
    frozen.rollback().await.unwrap();
    eventually("the effect", async || test.effects("books", 1).await == 1).await;
    shutdown.cancel();
    let report = within(run).await.unwrap();
    assert_eq!((report.handled, report.failed), (1, 0), "{report:?}");
    assert_eq!(script.attempts(), [1], "no attempt was used");
}

//! A process freezes in a transaction, while another process receives a copy of its message.
//! PostgreSQL only.

use std::sync::{Arc, Mutex};

use outbox_inbox::{Event, HandlerError, HandlerState, Router, Tx, idempotent_handler};
use outbox_testing::{MemoryBroker, eventually};
use sea_orm::{ConnectionTrait as _, Statement, TransactionTrait as _};

use crate::orders::{copy, numbered, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{Backend, OrderPlaced, Script, TestDb, book, int, placed, publish, slow};

const HANDLED: &str = "INSERT INTO inbox_messages (consumer, id, status, attempts, processed_at, expires_at) \
                       VALUES ('books', '{id}', 1, 0, now(), now() + interval '1 hour')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_delivery_wait_for_frozen_process_is_bounded() {
    no_wait_without_end("", HANDLED, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_message_wait_for_frozen_process_is_bounded() {
    let failed = HANDLED.replace(", 1, 0,", ", 0, 1,");
    no_wait_without_end(
        &failed,
        "UPDATE inbox_messages SET status = 1 WHERE id = '{id}'",
        2,
    )
    .await;
}

/// `before`: statements that create the rows. `frozen_in`: statements of the frozen process in its
/// open transaction. `attempt`: number of the successful attempt.
async fn no_wait_without_end(before: &str, frozen_in: &str, attempt: u32) {
    let Some(test) = TestDb::open(Backend::Postgres, "frozen").await else {
        return;
    };
    let broker = MemoryBroker::new();
    let message = publish(&broker, &placed(1)).await;
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
    let of_message = |sql: &str| sql.replace("{id}", &message.event_id.to_string());
    if !before.is_empty() {
        test.execute(&of_message(before)).await;
    }
    frozen.execute_unprepared(&of_message(frozen_in)).await.unwrap();

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
    eventually("another claim that waits", async || {
        int(&test.db, &waits_since).await > first
    })
    .await;
    frozen.rollback().await.unwrap();
    eventually("the effect", async || test.effects("books", 1).await == 1).await;
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.failed), (1, 0), "{report:?}");
    assert_eq!(script.attempts(), [attempt], "no attempt was used");
}

#[derive(Debug, Clone, Default)]
struct Waits(Arc<Mutex<Vec<(usize, String)>>>);

#[idempotent_handler(consumer = "waits", strategy = sequence, batch = 10)]
async fn note_wait(
    events: Vec<Event<OrderPlaced>>,
    tx: Tx<'_>,
    waits: HandlerState<Waits>,
) -> Result<(), HandlerError> {
    let show = Statement::from_string(tx.get_database_backend(), "SHOW lock_timeout");
    let row = tx.query_one_raw(show).await?.expect("a row");
    let wait = row.try_get_by_index(0)?;
    waits.0.0.lock().unwrap().push((events.len(), wait));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_a_batch_does_not_limit_the_handler() {
    let Some(test) = TestDb::open(Backend::Postgres, "a_copy_in_a_batch").await else {
        return;
    };
    let (broker, waits) = (MemoryBroker::new(), Waits::default());
    let drain = async || {
        let inbox = test
            .inbox(&broker, Router::new().handler::<note_wait>())
            .with_config(slow().concurrency(1))
            .with_state(waits.clone());
        within(inbox.drain()).await.unwrap()
    };
    let first = numbered(1, 1);
    put(&broker, &first).await;
    assert_eq!(drain().await.handled, 1);
    put(&broker, &numbered(2, 1)).await;
    put(&broker, &copy(&first)).await;
    let report = drain().await;
    assert_eq!((report.received, report.duplicates), (2, 1), "{report:?}");
    let session = (1, "0".to_owned());
    assert_eq!(*waits.0.lock().unwrap(), [session.clone(), session]);
}

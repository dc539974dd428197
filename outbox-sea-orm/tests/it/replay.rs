//! Counts the rows that PostgreSQL reads for a replay, retry and skip of many messages.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{Intent, MessageStatus, Operation, OperationKind, OperationScope, OutboxAudit, Selection};
use outbox_sea_orm::SqlStore;
use sea_orm::{ConnectionTrait, DatabaseConnection};

use crate::support::{Backend, TestDb};

const MESSAGES: i64 = 10_000;

const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

const SOON: Duration = Duration::from_secs(60);

async fn until_counted(test: &TestDb, pool: DatabaseConnection, statistic: &str, at_least: i64) {
    pool.close().await.unwrap();
    let counted = format!("SELECT {statistic}('{}'::regclass)", test.messages());
    let counted = async {
        while test.int(&counted).await < at_least {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, counted)
        .await
        .expect("the sessions have ended");
}

fn insert_published(test: &TestDb, count: i64, payload_bytes: usize) -> String {
    insert(test, count, payload_bytes, "1, clock_timestamp()")
}

fn insert(test: &TestDb, count: i64, payload_bytes: usize, status: &str) -> String {
    format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, headers, \
         status, published_at) SELECT gen_random_uuid(), n % 50, 'order', n % 50, n, 'order.placed', 1, 'text/plain', \
         convert_to(repeat('x', {payload_bytes}), 'UTF8'), '{{}}', {status} FROM generate_series(1, {count}) AS n",
        test.messages()
    )
}

fn operation(kind: OperationKind, selection: Selection) -> Operation {
    Operation::new(kind, OperationScope::messages(selection), Intent::of("ann"))
}

/// Without an index by row id, a table scan per batch would make a replay quadratic.
#[tokio::test]
async fn replay_does_not_read_the_table_for_each_batch() {
    let Some(test) = TestDb::open(Backend::Postgres, "replay").await else {
        return;
    };
    let messages = test.messages();
    let pool = test.connect_again(|_| {}).await;
    let insert = insert_published(&test, MESSAGES, 1_800);
    pool.execute_unprepared(&insert).await.unwrap();
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let published = Selection::all().status(MessageStatus::Published);
    let replay = operation(OperationKind::Replay, published);
    let advanced = store.advance(&replay, STEP).await.unwrap();
    assert_eq!(
        (advanced.changed, advanced.is_finished()),
        (MESSAGES as u64, true)
    );
    until_counted(&test, pool, "pg_stat_get_tuples_inserted", 2 * MESSAGES).await;
    let read = format!("SELECT pg_stat_get_tuples_returned('{messages}'::regclass)");
    let read = test.int(&read).await;
    assert!(read <= 2 * MESSAGES, "{read} rows were read to copy {MESSAGES}");

    let order = format!(
        "SELECT count(*) FROM (SELECT sequence < lag(sequence) OVER (PARTITION BY aggregate_id ORDER BY row_id) AS is_wrong \
         FROM {messages} WHERE status = 0) copies WHERE is_wrong"
    );
    assert_eq!(test.int(&order).await, 0, "copies are not in order");
}

//! Reads per replay, retry and skip of many messages.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{Intent, MessageStatus, Operation, OperationKind, OperationScope, OutboxAudit, Selection};
use outbox_sea_orm::SqlStore;
use outbox_testing::Operator as _;
use sea_orm::{ConnectionTrait, DatabaseConnection};

use crate::support::{Backend, TestDb};

const MESSAGES: i64 = 10_000;

const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

const SOON: Duration = Duration::from_secs(60);

/// A session reports its statistics when it ends.
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

/// PostgreSQL has no index by row id. One table scan per batch would make a replay quadratic.
#[tokio::test]
async fn replay_does_not_read_the_table_for_each_batch() {
    let Some(test) = TestDb::open(Backend::Postgres, "replay").await else {
        return;
    };
    let messages = test.messages();
    let pool = test.connect_again(|_| {}).await;
    // Makes 250 lookups by id cheaper than a scan.
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

async fn insert_halting(test: &TestDb, pool: &DatabaseConnection) {
    let dead = insert(test, MESSAGES, 200, "2, NULL").replace("'order', n % 50", "'dead', n");
    let blocks = test.blocks();
    let insert = format!(
        "WITH dead AS ({dead} RETURNING aggregate_type, aggregate_id, partition_no, row_id) \
         INSERT INTO {blocks} (aggregate_type, aggregate_id, partition_no, halted_by) SELECT * FROM dead"
    );
    pool.execute_unprepared(&insert).await.unwrap();
}

#[tokio::test]
async fn a_batch_of_dead_letters_reads_no_other_messages() {
    for statistics in ["none", "stale", "fresh"] {
        let Some(test) = TestDb::open(Backend::Postgres, "dead_letters").await else {
            return;
        };
        let pool = test
            .connect_again(|options| {
                options.max_connections(1);
            })
            .await;
        let analyze = async |table: String| {
            let analyze = format!("ANALYZE {table}");
            pool.execute_unprepared(&analyze).await.unwrap();
        };
        pool.execute_unprepared(&insert_published(&test, 10 * MESSAGES, 200))
            .await
            .unwrap();
        if statistics == "stale" {
            analyze(test.messages()).await;
        }
        insert_halting(&test, &pool).await;
        if statistics == "fresh" {
            analyze(test.messages()).await;
            analyze(test.blocks()).await;
        }
        let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
        let skip = operation(OperationKind::Skip, Selection::dead_letters());
        let skipped = store.advance(&skip, STEP).await.unwrap();
        assert_eq!(skipped.changed, MESSAGES as u64);
        let retried = store.retry(&Selection::dead_letters()).await.unwrap();
        assert_eq!(retried, MESSAGES as u64);
        until_counted(&test, pool, "pg_stat_get_tuples_updated", MESSAGES).await;
        let read = format!(
            "SELECT pg_stat_get_tuples_returned(relid) + idx_tup_fetch FROM pg_stat_all_tables WHERE relid = '{}'::regclass",
            test.messages()
        );
        let read = test.int(&read).await;
        assert!(
            read <= 4 * MESSAGES,
            "{statistics} statistics: {read} messages were read to skip and retry {MESSAGES}"
        );
    }
}

//! Replaying many messages: how much the database reads for it.

use std::time::Duration;

use outbox_core::{MessageStatus, OutboxAdmin, Selection};
use outbox_sea_orm::SqlStore;
use sea_orm::ConnectionTrait;

use crate::support::{Backend, TestDb};

const MESSAGES: i64 = 10_000;

/// Bound of a wait that is normally short; long, because the machine is busy when all tests run.
const SOON: Duration = Duration::from_secs(60);

/// PostgreSQL has no index in the order of row ids. If each batch looked for the next one in the table, a replay would take a time that grows with
/// the square of the number of messages.
#[tokio::test]
async fn a_replay_does_not_read_the_table_once_for_each_batch() {
    let Some(test) = TestDb::open(Backend::Postgres, "replay").await else {
        return;
    };
    let messages = test.messages();
    let pool = test.connect_again(|_| {}).await;
    // Large enough that looking 250 of them up by id is cheaper than reading all.
    let insert = format!(
        "INSERT INTO {messages} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, headers, \
         status, published_at) SELECT gen_random_uuid(), n % 50, 'order', n % 50, n, 'order.placed', 1, 'text/plain', \
         convert_to(repeat('x', 1800), 'UTF8'), '{{}}', 1, clock_timestamp() FROM generate_series(1, {MESSAGES}) AS n"
    );
    pool.execute_unprepared(&insert).await.unwrap();
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let published = Selection::all().status(MessageStatus::Published);
    assert_eq!(store.replay(&published).await.unwrap(), MESSAGES as u64);
    // A session counts what it has done at its end, all at once.
    pool.close().await.unwrap();
    let inserted = format!("SELECT pg_stat_get_tuples_inserted('{messages}'::regclass)");
    let counted = async {
        while test.int(&inserted).await < 2 * MESSAGES {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, counted)
        .await
        .expect("the sessions have ended");
    // Rows that were read by scanning the whole table.
    let read = format!("SELECT pg_stat_get_tuples_returned('{messages}'::regclass)");
    let read = test.int(&read).await;
    assert!(read <= 2 * MESSAGES, "{read} rows were read to copy {MESSAGES}");

    let order = format!(
        "SELECT count(*) FROM (SELECT sequence < lag(sequence) OVER (PARTITION BY aggregate_id ORDER BY row_id) AS is_wrong \
         FROM {messages} WHERE status = 0) copies WHERE is_wrong"
    );
    assert_eq!(test.int(&order).await, 0, "copies are not in order");
}

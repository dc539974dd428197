//! Daily tables (PostgreSQL): failures and races while days are made and dropped. The tests of the store's promises also run with this layout.

use std::time::Duration;

use outbox_core::{OutboxStore, PurgeRequest, Purged, Selection, Verdict};
use outbox_sea_orm::{RecordError, TableNames};
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use sea_orm::{DbBackend, DbErr, TransactionTrait};
use time::OffsetDateTime;

use crate::support::{Backend, TestDb};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Longer than any of these tests takes.
const TEST_MAX: u64 = 120;

async fn open(test: &str) -> Option<TestDb> {
    // The tests count days, so none of them goes on into the next one (UTC).
    let left = DAY.as_secs() - OffsetDateTime::now_utc().unix_timestamp().unsigned_abs() % DAY.as_secs();
    if left < TEST_MAX {
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
    TestDb::open(Backend::PostgresByDay, test).await
}

/// The full name of a table of the test.
fn table(test: &TestDb, name: &'static str) -> String {
    test.names.table(DbBackend::Postgres, name)
}

/// Makes the table of the day that many days ago, with published messages, each with a text of its own in `dedup_key`.
async fn make_day(test: &TestDb, days_ago: i64, messages: i64) {
    let make = table(test, "outbox_make_day");
    test.execute(&format!(
        "SELECT {make}((now() AT TIME ZONE 'UTC')::date - {days_ago})"
    ))
    .await;
    insert(test, days_ago, messages).await;
}

async fn insert(test: &TestDb, days_ago: i64, messages: i64) {
    let at = format!("clock_timestamp() - interval '{days_ago} days'");
    // Ids begin with the time in milliseconds.
    let id = format!(
        "(lpad(to_hex((extract(epoch FROM {at}) * 1000)::int8), 12, '0') || '7' || substr(md5(random()::text), 14))::uuid"
    );
    test.execute(&format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, \
         payload, headers, dedup_key, status, created_at, published_at) SELECT {id}, 0, 'old', \
         {days_ago} || '-' || n, 1, 'old.noted', 1, 'application/json', '{{}}', '{{}}', {days_ago} || '-' || n, 1, {at}, {at} \
         FROM generate_series(1, {messages}) AS n",
        test.messages()
    ))
    .await;
}

/// The number of daily tables.
async fn days(test: &TestDb) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = '{}'::regclass",
        test.messages()
    );
    test.int(&sql).await - 1
}

async fn count(test: &TestDb, table: &str) -> i64 {
    test.int(&format!("SELECT count(*) FROM {table}")).await
}

/// A whole round of purging with a retention of two days. Returns the number of deleted messages.
async fn purge(test: &TestDb) -> u64 {
    let (mut deleted, mut after) = (0, None);
    loop {
        let Purged { deleted: n, next } = purge_once(test, after).await;
        deleted += n;
        if next.is_none() {
            return deleted;
        }
        after = next;
    }
}

/// As many rounds as it takes until so many daily tables are left: a round leaves a day alone whose lock is not granted in time, as beside an
/// autovacuum. Returns the number of deleted messages.
async fn purge_until(test: &TestDb, left: i64) -> u64 {
    let mut deleted = 0;
    for _ in 0..50 {
        deleted += purge(test).await;
        if days(test).await == left {
            break;
        }
    }
    deleted
}

async fn purge_once(test: &TestDb, after: Option<outbox_core::MessageId>) -> Purged {
    let request = PurgeRequest {
        older_than: Some(2 * DAY),
        keys_older_than: 2 * DAY,
        after,
        limit: 100.try_into().unwrap(),
    };
    test.store().purge(request).await.expect("purge answers")
}

/// Messages that are unpublished, or were published within the retention, survive their day, with status and order.
#[tokio::test]
async fn a_dead_letter_survives_the_drop_of_its_day() {
    let Some(test) = open("dead").await else { return };
    make_day(&test, 5, 10).await;
    let messages = test.messages();
    for (n, change) in [
        (1, "status = 2, published_at = NULL"),
        (2, "status = 0, published_at = NULL"),
        (3, "status = 3, published_at = NULL"),
        (4, "published_at = clock_timestamp()"),
    ] {
        let change = format!("UPDATE {messages} SET {change} WHERE dedup_key = '5-{n}'");
        test.execute(&change).await;
    }
    assert_eq!(days(&test).await, 5);
    assert_eq!(purge_until(&test, 4).await, 6);
    assert_eq!(days(&test).await, 4, "the day is still there");
    assert_eq!(
        count(
            &test,
            &format!("{messages}_default WHERE dedup_key IN ('5-1', '5-2', '5-3', '5-4')")
        )
        .await,
        4
    );
    assert_eq!(count(&test, &messages).await, 4);

    test.record([Probe::noted("a", 1)]).await.unwrap();

    // They are published, and then deleted like any other.
    assert_eq!(test.store().retry(&Selection::dead_letters()).await.unwrap(), 1);
    let (_, leases) = test.lease_all().await;
    let rows = test.fetch_all().await;
    assert_eq!(rows.len(), 3, "two old and the new one");
    assert_eq!(
        test.settle(&leases, &rows, Verdict::Published { keep: true })
            .await,
        3
    );
    test.execute(&format!(
        "UPDATE {messages} SET published_at = created_at WHERE status = 1"
    ))
    .await;
    assert_eq!(purge(&test).await, 3);
    assert_eq!(count(&test, &messages).await, 2, "the waiting and the new one");
}

/// Otherwise a save that is repeated after the day has gone would take effect twice.
#[tokio::test]
async fn a_deduplication_key_outlives_the_day_of_its_message() {
    let Some(test) = open("keys").await else { return };
    make_day(&test, 5, 10).await;
    // As if the keys were recorded later: they are younger than their retention of two days.
    test.execute(&format!(
        "INSERT INTO {} (dedup_key, recorded_at) SELECT dedup_key, clock_timestamp() - interval '1 day' FROM {}",
        table(&test, "outbox_dedup_keys"),
        test.messages()
    ))
    .await;
    assert_eq!(purge_until(&test, 4).await, 10);
    assert_eq!(days(&test).await, 4, "the day is still there");
    let again = [Probe::noted("a", 1).with_dedup_key("5-3")];
    let refused = test.record(again).await.unwrap_err();
    assert!(matches!(refused, RecordError::DuplicateKey { .. }), "{refused:?}");
}

/// Writers wait for a moment while days are dropped; none fails, and no message is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_do_not_fail_while_a_day_is_dropped() {
    let Some(test) = open("writers").await else { return };
    for day in 3..9 {
        make_day(&test, day, 500).await;
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (test, stop) = (&test, &stop);
    let write = |writer: u64| async move {
        let mut written = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) || written < 10 {
            let events = [
                Probe::noted(format!("w{writer}"), written),
                Probe::noted("shared", written),
            ];
            test.record(events).await.expect("writers do not fail");
            written += 1;
        }
        written
    };
    let relay = async {
        let (_, leases) = test.lease_all().await;
        let mut settled = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let rows = test.scan(&leases, 100).await.due;
            settled += test
                .settle(&leases, &rows, Verdict::Published { keep: true })
                .await;
        }
        settled
    };
    let drop = async {
        let deleted = purge_until(test, 4).await;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        deleted
    };
    let (a, b, c, _, deleted) = tokio::join!(write(1), write(2), write(3), relay, drop);
    assert_eq!(deleted, 6 * 500);
    assert_eq!(days(test).await, 4);
    assert_eq!(count(test, &test.messages()).await, 2 * (a + b + c) as i64);
    let aggregates = table(test, "outbox_aggregates");
    assert_eq!(
        test.int(&format!(
            "SELECT last_sequence FROM {aggregates} WHERE aggregate_id = 'shared'"
        ))
        .await,
        (a + b + c) as i64
    );
}

/// A transaction that stays open postpones the drop, and writers continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_postpones_the_drop() {
    let Some(test) = open("open").await else { return };
    make_day(&test, 5, 10).await;
    let open = test.outbox().begin().await.unwrap();
    outbox_sea_orm::record(&open, [Probe::noted("open", 1)])
        .await
        .unwrap();
    assert_eq!(purge(&test).await, 0);
    assert_eq!(days(&test).await, 5);
    test.record([Probe::noted("other", 1)]).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(purge_until(&test, 4).await, 10);
    assert_eq!(days(&test).await, 4);
    assert_eq!(test.fetch_all().await.len(), 2);
}

/// If nobody makes days, messages are still recorded, relayed and purged; days are made again as soon as possible.
#[tokio::test]
async fn a_day_without_a_partition_is_caught_by_the_default() {
    let Some(test) = open("default").await else { return };
    let messages = test.messages();
    let drop_all = format!(
        "DO $$ DECLARE day text; BEGIN FOR day IN SELECT inhrelid::regclass::text FROM pg_inherits \
         WHERE inhparent = '{messages}'::regclass AND inhrelid <> '{messages}_default'::regclass \
         LOOP EXECUTE 'DROP TABLE ' || day; END LOOP; END $$"
    );
    test.execute(&drop_all).await;
    test.record([Probe::noted("a", 1), Probe::noted("a", 2)])
        .await
        .unwrap();
    insert(&test, 5, 250).await;
    assert_eq!(count(&test, &format!("{messages}_default")).await, 252);
    let (_, leases) = test.lease_all().await;
    let rows = test.fetch_all().await;
    assert_eq!(rows.len(), 2);

    assert_eq!(
        purge_until(&test, 3).await,
        250,
        "what is old is deleted row by row"
    );
    assert_eq!(
        days(&test).await,
        3,
        "today has messages in the default partition and stays there"
    );
    test.record([Probe::noted("a", 3)]).await.unwrap();
    assert_eq!(count(&test, &format!("{messages}_default")).await, 3);

    assert_eq!(
        test.settle(&leases, &rows, Verdict::Published { keep: false })
            .await,
        2
    );
    test.execute(&format!("DELETE FROM {messages}")).await;
    purge_until(&test, 4).await;
    assert_eq!(days(&test).await, 4);
    test.record([Probe::noted("a", 4)]).await.unwrap();
    assert_eq!(count(&test, &format!("{messages}_default")).await, 0);
}

/// Writers and relays wait for the lock under which the default partition is read. The server reads it by itself; once is enough.
#[tokio::test]
async fn making_a_day_reads_the_default_partition_once() {
    const ROWS: i64 = 10_000;
    let Some(test) = open("default_read").await else {
        return;
    };
    // Days that nobody makes.
    insert(&test, 20, ROWS).await;
    let scanned = format!(
        "SELECT pg_stat_get_tuples_returned('{}_default'::regclass)",
        test.messages()
    );
    let pool = test.connect_again(|_| {}).await;
    let make = table(&test, "outbox_make_day");
    let made = format!("SELECT {make}((now() AT TIME ZONE 'UTC')::date + 10)::int::int8");
    assert_eq!(crate::support::int(&pool, &made).await, 1);
    // A session counts what it has read at its end.
    pool.close().await.unwrap();
    let counted = async {
        loop {
            match test.int(&scanned).await {
                0 => tokio::task::yield_now().await,
                read => return read,
            }
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(60), counted).await;
    let read = read.expect("the session has ended");
    assert!(read <= ROWS, "{read} of {ROWS} rows were read");
}

/// Two relays purge at once, as after a takeover: each message is deleted once, and neither fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_purgers_do_not_deadlock_over_a_day() {
    let Some(test) = open("two_purgers").await else {
        return;
    };
    for day in 3..9 {
        make_day(&test, day, 300).await;
    }
    insert(&test, 20, 300).await;
    let (a, b, c) = tokio::join!(purge(&test), purge(&test), purge(&test));
    // A purge that finds another one at work leaves the day to it.
    let rest = purge_until(&test, 4).await;
    assert_eq!(a + b + c + rest, 7 * 300);
    assert_eq!(days(&test).await, 4);
    assert_eq!(count(&test, &test.messages()).await, 0);
}

/// A day in which too many rows must stay is left alone, and does not hold back other days.
#[tokio::test]
async fn a_day_of_unpublished_messages_is_not_copied() {
    let Some(test) = open("unpublished").await else {
        return;
    };
    make_day(&test, 6, 10_001).await;
    make_day(&test, 5, 10).await;
    let messages = test.messages();
    test.execute(&format!(
        "UPDATE {messages} SET status = 2 WHERE dedup_key LIKE '6-%'"
    ))
    .await;
    assert_eq!(purge_until(&test, 5).await, 10);
    assert_eq!(days(&test).await, 5);
    assert_eq!(count(&test, &format!("{messages}_default")).await, 0);
}

/// With a retention of hours, rows are deleted before their day ends, and empty days do not pile up.
#[tokio::test]
async fn a_short_retention_leaves_no_empty_days() {
    let Some(test) = open("short").await else { return };
    make_day(&test, 2, 10).await;
    make_day(&test, 1, 10).await;
    insert(&test, 0, 10).await;
    let (mut deleted, mut after) = (0, None);
    for _ in 0..100 {
        let request = PurgeRequest {
            older_than: Some(Duration::ZERO),
            keys_older_than: DAY,
            after,
            limit: 100.try_into().unwrap(),
        };
        let purged = test.store().purge(request).await.unwrap();
        (deleted, after) = (deleted + purged.deleted, purged.next);
        // After the end of a round another one begins.
        if after.is_none() && days(&test).await == 4 {
            break;
        }
    }
    assert_eq!((deleted, days(&test).await), (30, 4));
}

/// Other databases are refused before anything is changed.
#[tokio::test]
async fn other_databases_have_no_days() {
    use outbox_sea_orm::migration::partitioned;

    for backend in [Backend::Sqlite, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "no_days").await else {
            continue;
        };
        let error = partitioned::migrate_with(&test.db, &test.names)
            .await
            .unwrap_err();
        assert!(matches!(error, DbErr::BackendNotSupported { .. }), "{error:?}");
        let tx = test.db.begin().await.unwrap();
        let migrations = partitioned::migrations(&TableNames::new());
        let manager = sea_orm_migration::SchemaManager::new(&tx);
        let error = migrations[0].up(&manager).await.unwrap_err();
        assert!(matches!(error, DbErr::BackendNotSupported { .. }), "{error:?}");
    }
}

//! Query plans: a poll for dead letters reads about as many entries as it returns.

use outbox_core::Aggregate;

use super::*;
use crate::dead_letter::{DeadLetterSelection, DeadLetterStatus, count_selected, retry};

const MARKED: u32 = 20_000;
const POLLED: u32 = 100;
const READ_MAX: f64 = (POLLED * POLLED) as f64;
const OF_ONE: u32 = 10;

async fn fill_letters(test: &TestDb, aggregate: &str) {
    let backend = test.sql.backend();
    let (id, cast) = match backend {
        DbBackend::Postgres => (key(backend, ""), "::uuid"),
        _ => (key(backend, ""), ""),
    };
    let insert = format!(
        "INSERT INTO {} (id, consumer, event_id, event_type, aggregate_type, aggregate_id, sequence, source, subject, stream_sequence, headers, payload, error, \
         attempts, status, created_at) SELECT {id}{cast}, 'billing', {id}{cast}, 'order.placed', 'order', {aggregate}, n, 'shop', 'x', n, '[]', 'x', 'declined', 1, \
         0, {} FROM {}",
        test.sql.dead_letters(),
        now(backend),
        numbers(backend, MARKED),
    );
    test.db.execute_unprepared(&insert).await.unwrap();
}

async fn set_status(tx: &DatabaseTransaction, test: &TestDb, status: i16) {
    let update = format!("UPDATE {} SET status = {status}", test.sql.dead_letters());
    tx.execute_unprepared(&update).await.unwrap();
}

async fn mark(tx: &DatabaseTransaction, test: &TestDb, statistics: &str) {
    set_status(tx, test, 0).await;
    if statistics == "stale" {
        analyze(tx, test.sql.dead_letters()).await;
    }
    set_status(tx, test, 1).await;
    if statistics == "fresh" {
        analyze(tx, test.sql.dead_letters()).await;
    }
}

async fn check_reads(tx: &DatabaseTransaction, statement: Statement, max: f64, what: &str) {
    if tx.get_database_backend() == DbBackend::MySql {
        tx.execute_unprepared("FLUSH STATUS").await.unwrap();
        match statement.sql.starts_with("SELECT") {
            true => drop(tx.query_all_raw(statement).await.unwrap()),
            false => drop(tx.execute_raw(statement).await.unwrap()),
        }
        let read = entries_read(tx).await;
        assert!(read as f64 <= max, "{what}: {read} entries");
        return;
    }
    let plan = explain(
        tx,
        statement,
        "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON)",
    )
    .await;
    let pages = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| plan[0]["Plan"][key].as_f64().unwrap());
    let (pages, rows) = (pages[0] + pages[1], rows_read(&plan));
    assert!(
        rows <= max && pages <= max,
        "{what}: {rows} rows and {pages} pages: {plan:#}"
    );
}

fn rows_read(node: &Value) -> f64 {
    match node {
        Value::Array(nodes) => nodes.iter().map(rows_read).sum(),
        Value::Object(fields) => {
            let count = |key: &str| node[key].as_f64().unwrap_or_default();
            let rows = count("Actual Rows") + count("Rows Removed by Filter");
            let rows = rows + count("Rows Removed by Join Filter");
            rows * count("Actual Loops") + fields.values().map(rows_read).sum::<f64>()
        }
        _ => 0.0,
    }
}

#[tokio::test]
async fn a_poll_reads_few_letters_of_a_hot_aggregate() {
    for test in TestDb::open_all().await {
        fill_letters(&test, "'1'").await;
        for statistics in ["none", "stale", "fresh"] {
            let tx = test.begin().await;
            mark(&tx, &test, statistics).await;
            for (name, statement) in [
                ("sizes", retry::sizes_of_due(&test.sql, "billing", &[], POLLED)),
                (
                    "letters",
                    retry::read_due(&test.sql, "billing", &[], POLLED.into()),
                ),
            ] {
                let found = tx.query_all_raw(statement.clone()).await.unwrap();
                assert_eq!(found.len(), POLLED as usize);
                if test.sql.backend() != DbBackend::Sqlite {
                    let what = format!("{name}, statistics {statistics}");
                    check_reads(&tx, statement, READ_MAX, &what).await;
                    continue;
                }
                let plan = query_plan(&tx, statement).await;
                let has = |end: &str| plan.iter().any(|line| line.ends_with(end));
                assert!(
                    has("l USING INDEX inbox_dead_letters_retry (consumer=?)"),
                    "{plan:?}"
                );
                assert!(
                    has("(consumer=? AND aggregate_type=? AND aggregate_id=? AND source=? AND sequence<?)"),
                    "{plan:?}"
                );
                assert!(!plan.iter().any(|line| line.contains("B-TREE")), "{plan:?}");
            }
            tx.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn poll_reads_held_back_letters_once() {
    for test in TestDb::open_all().await {
        fill_letters(&test, "CASE WHEN n = 10000 THEN '2' ELSE '1' END").await;
        let old = format!(
            "UPDATE {} SET sequence = 0, stream_sequence = 90000 WHERE sequence = 1",
            test.sql.dead_letters()
        );
        test.db.execute_unprepared(&old).await.unwrap();
        for statistics in ["none", "stale", "fresh"] {
            let tx = test.begin().await;
            mark(&tx, &test, statistics).await;
            for (held, expected, each) in [
                (vec![], vec![10_000, 90_000], 20),
                (vec![Aggregate::new("order", "1")], vec![10_000], 8),
            ] {
                let found = retry::due(&tx, &test.sql, "billing", &held, POLLED, usize::MAX).await;
                let places = found
                    .unwrap()
                    .into_iter()
                    .map(|letter| letter.incoming.stream_sequence);
                assert_eq!(places.collect::<Vec<_>>(), expected);
                let statement = retry::sizes_of_due(&test.sql, "billing", &held, POLLED);
                if test.sql.backend() != DbBackend::Sqlite {
                    let what = format!("{} held, statistics {statistics}", held.len());
                    check_reads(&tx, statement, f64::from(each * MARKED), &what).await;
                }
            }
            tx.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn failed_retry_reads_its_own_aggregate_only() {
    for test in TestDb::open_all().await {
        let aggregate = match test.sql.backend() {
            DbBackend::MySql => format!("CAST(n DIV {OF_ONE} AS CHAR)"),
            _ => format!("CAST(n / {OF_ONE} AS text)"),
        };
        fill_letters(&test, &aggregate).await;
        for statistics in ["none", "stale", "fresh"] {
            let tx = test.begin().await;
            mark(&tx, &test, statistics).await;
            let found = retry::due(&tx, &test.sql, "billing", &[], POLLED, usize::MAX).await;
            let failed = found.unwrap().remove(OF_ONE as usize);
            let aggregate = Aggregate::new("order", "1");
            let hold = retry::hold_behind(&test.sql, &failed, "billing", &aggregate);
            let marked = DeadLetterSelection::consumer("billing").aggregate(aggregate);
            let marked = marked.status(DeadLetterStatus::Retry);
            for statement in [count_selected(&test.sql, &marked), hold] {
                if test.sql.backend() == DbBackend::Sqlite {
                    let plan = query_plan(&tx, statement).await;
                    let of_aggregate = "(consumer=? AND aggregate_type=? AND aggregate_id=?)";
                    assert!(plan[0].ends_with(of_aggregate), "{plan:?}");
                } else {
                    let what = format!("statistics {statistics}");
                    check_reads(&tx, statement, f64::from(100 * OF_ONE), &what).await;
                }
            }
            tx.rollback().await.unwrap();
        }
    }
}

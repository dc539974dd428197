//! A purge reads expired rows only, with and without table statistics.

mod dead_letters;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement};
use serde_json::Value;

use crate::tests::database::TestDb;

const LIVING: u32 = 50_000;
const EXPIRED: u32 = 50;

struct Purge {
    table: String,
    index: &'static str,
    columns: &'static str,
    values: fn(DbBackend, &str) -> String,
    expired: Statement,
}

fn key(backend: DbBackend, text: &str) -> String {
    match backend {
        DbBackend::Postgres => format!("md5('{text}' || n)"),
        DbBackend::MySql => format!("UNHEX(MD5(CONCAT('{text}', n)))"),
        _ => "randomblob(16)".to_owned(),
    }
}

fn purges(test: &TestDb) -> Vec<Purge> {
    vec![
        Purge {
            table: test.sql.messages().to_owned(),
            index: "inbox_messages_expires_at",
            columns: "consumer, id, status, attempts, processed_at",
            values: |backend, text| {
                let cast = if backend == DbBackend::Postgres {
                    "::uuid"
                } else {
                    ""
                };
                format!("'billing', {}{cast}, 1, 0, {}", key(backend, text), now(backend))
            },
            expired: crate::retention::expired(&test.sql, 1_000),
        },
        #[cfg(feature = "http")]
        Purge {
            table: test.names.table(test.sql.backend(), "inbox_requests"),
            index: "inbox_requests_expires_at",
            columns: "id, tenant, principal, idempotency_key, route, fingerprint, created_at",
            values: |backend, text| {
                let id = match backend {
                    DbBackend::Postgres => format!("{}::bytea", key(backend, text)),
                    _ => key(backend, text),
                };
                format!(
                    "{id}, '', '', '', '', '12345678901234567890123456789012', {}",
                    now(backend)
                )
            },
            expired: crate::http::expired_ids(test.sql.backend(), &test.names),
        },
    ]
}

#[tokio::test]
async fn purge_reads_expired_rows_only() {
    for test in TestDb::open_all().await {
        let backend = test.sql.backend();
        for purge in purges(&test) {
            let tx = test.begin().await;
            for (count, hours) in [(LIVING, 10), (EXPIRED, -1), (LIVING, 20)] {
                fill(&tx, &purge, count, hours).await;
            }
            tx.commit().await.unwrap();
            for statistics in ["none", "fresh"] {
                let tx = test.begin().await;
                if statistics == "fresh" {
                    analyze(&tx, &purge.table).await;
                }
                match backend {
                    DbBackend::Postgres => check_postgres(&tx, &purge).await,
                    DbBackend::MySql => check_mysql(&tx, &purge).await,
                    _ => check_sqlite(&tx, &purge).await,
                }
                tx.rollback().await.unwrap();
            }
        }
    }
}

async fn analyze(tx: &DatabaseTransaction, table: &str) {
    let analyze = match tx.get_database_backend() {
        DbBackend::Postgres => format!("ANALYZE {table}"),
        DbBackend::MySql => format!("ANALYZE TABLE {table}"),
        _ => "ANALYZE".to_owned(),
    };
    tx.execute_unprepared(&analyze).await.unwrap();
}

async fn check_postgres(tx: &DatabaseTransaction, purge: &Purge) {
    let plan = explain(
        tx,
        purge.expired.clone(),
        "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON)",
    )
    .await;
    let scan = find(&plan, &|node| {
        node["Index Name"]
            .as_str()
            .is_some_and(|name| name.ends_with(purge.index))
    });
    let scan = scan.unwrap_or_else(|| panic!("no index: {plan:#}"));
    assert!(scan["Index Cond"].is_string(), "the index is scanned: {plan:#}");
    assert!(
        find(&plan, &|node| node.get("Rows Removed by Filter").is_some()).is_none(),
        "rows are read in vain: {plan:#}"
    );
    let pages = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| plan[0]["Plan"][key].as_i64().unwrap());
    let pages: i64 = pages.iter().sum();
    assert!(
        pages <= 6 * i64::from(EXPIRED),
        "{pages} pages for {EXPIRED} rows: {plan:#}"
    );
}

async fn check_mysql(tx: &DatabaseTransaction, purge: &Purge) {
    let plan = explain(tx, purge.expired.clone(), "EXPLAIN FORMAT=JSON").await;
    let scan = find(&plan, &|node| node["key"] == purge.index);
    let scan = scan.unwrap_or_else(|| panic!("no index: {plan:#}"));
    assert_eq!(scan["access_type"], "range", "{plan:#}");
    tx.execute_unprepared("FLUSH STATUS").await.unwrap();
    let rows = tx.query_all_raw(purge.expired.clone()).await.unwrap();
    assert_eq!(rows.len(), EXPIRED as usize);
    let read = entries_read(tx).await;
    assert!(
        read < 10 * i64::from(EXPIRED),
        "{read} entries for {EXPIRED} rows"
    );
}

async fn entries_read(tx: &DatabaseTransaction) -> i64 {
    let read = Statement::from_string(
        DbBackend::MySql,
        "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.session_status \
         WHERE variable_name IN ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT')",
    );
    let row = tx.query_one_raw(read).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

async fn check_sqlite(tx: &DatabaseTransaction, purge: &Purge) {
    let plan = query_plan(tx, purge.expired.clone()).await;
    let range = format!("USING INDEX {} (expires_at<?)", purge.index);
    assert!(
        plan.len() == 1 && plan[0].starts_with("SEARCH") && plan[0].ends_with(&range),
        "{plan:?}"
    );
}

async fn query_plan(tx: &DatabaseTransaction, statement: Statement) -> Vec<String> {
    let explained = with_prefix(statement, "EXPLAIN QUERY PLAN");
    let rows = tx.query_all_raw(explained).await.unwrap();
    let lines = rows.iter().map(|row| row.try_get("", "detail").unwrap());
    lines.collect()
}

async fn fill(tx: &DatabaseTransaction, purge: &Purge, count: u32, hours: i32) {
    let backend = tx.get_database_backend();
    let expiry = match backend {
        DbBackend::Postgres => format!("now() + interval '{hours} hours'"),
        DbBackend::MySql => format!("TIMESTAMPADD(HOUR, {hours}, UTC_TIMESTAMP(6))"),
        _ => format!("{} + {hours} * 3600000000", now(backend)),
    };
    let numbers = numbers(backend, count);
    let values = (purge.values)(backend, &hours.to_string());
    let insert = format!(
        "INSERT INTO {} ({}, expires_at) SELECT {values}, {expiry} FROM {numbers}",
        purge.table, purge.columns
    );
    tx.execute_unprepared(&insert).await.unwrap();
}

fn numbers(backend: DbBackend, count: u32) -> String {
    match backend {
        DbBackend::Postgres => format!("generate_series(1, {count}) AS numbers (n)"),
        DbBackend::MySql => format!("(SELECT seq AS n FROM seq_1_to_{count}) AS numbers"),
        _ => format!(
            "(WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t) AS numbers"
        ),
    }
}

fn now(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "now()",
        DbBackend::MySql => "UTC_TIMESTAMP(6)",
        _ => "CAST(unixepoch() AS INTEGER) * 1000000",
    }
}

fn with_prefix(mut statement: Statement, prefix: &str) -> Statement {
    statement.sql = format!("{prefix} {}", statement.sql);
    statement
}

async fn explain(tx: &DatabaseTransaction, statement: Statement, prefix: &str) -> Value {
    let explained = with_prefix(statement, prefix);
    let row = tx.query_one_raw(explained).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap_or_else(|_| {
        let text: String = row.try_get_by_index(0).unwrap();
        serde_json::from_str(&text).unwrap()
    })
}

fn find<'p>(node: &'p Value, matches: &dyn Fn(&Value) -> bool) -> Option<&'p Value> {
    if matches(node) {
        return Some(node);
    }
    match node {
        Value::Array(nodes) => nodes.iter().find_map(|node| find(node, matches)),
        Value::Object(fields) => fields.values().find_map(|node| find(node, matches)),
        _ => None,
    }
}

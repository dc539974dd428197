//! Checks that fetching walks the index of pending rows and nothing else, whatever the statistics say (O24).
//!
//! A table with many published and few pending rows, once with statistics and once without any; then one where a fetch must not read the
//! whole backlog. These tests are here and not in `tests/`, because they look at the statement itself.

use std::time::Duration;

use outbox_core::Aggregate;
use outbox_core::testing::backend_url;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use uuid::Uuid;

use super::fetch;
use crate::dialect::Dialect;
use crate::names::TableNames;

const PUBLISHED: i64 = 20_000;
const PENDING: i64 = 200;

#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    fill(&db, &dialect).await;
    for statistics in ["none", "stale", "fresh"] {
        if statistics != "none" {
            run(&db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        if statistics == "stale" {
            // What was analysed had next to nothing pending.
            insert(&db, &dialect, 10 * PENDING, 0).await;
        }
        let plan = explain(
            &db,
            &dialect,
            50,
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)",
        )
        .await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let scan = find(&plan, &|node| node["Alias"] == "m").expect("a scan of the messages");
        assert_eq!(scan["Index Name"], "outbox_messages_pending", "{plan:#}");
        assert!(
            find(&plan, &|node| node["Node Type"] == "Sort").is_none(),
            "the backlog is sorted: {plan:#}"
        );
        let read = scan["Actual Rows"].as_i64().unwrap()
            + scan["Rows Removed by Filter"].as_i64().unwrap_or_default();
        assert!(read <= 50, "{read} rows were read to fetch 50: {plan:#}");
        assert!(
            find(&plan, &|node| node.get("JIT").is_some()).is_none(),
            "the plan is compiled: {plan:#}"
        );
    }
}

#[tokio::test]
async fn mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill(&db, &dialect).await;
    for analyze in ["", "ANALYZE"] {
        if !analyze.is_empty() {
            run(&db, &format!("ANALYZE TABLE {}", dialect.messages)).await;
        }
        let plan = explain(&db, &dialect, 50, "EXPLAIN FORMAT=JSON").await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let scan = find(&plan, &|node| node["table_name"] == "m").expect("a scan of the messages");
        assert_eq!(scan["key"], "outbox_messages_status", "{plan:#}");
        assert!(
            find(&plan, &|node| node.get("filesort").is_some()
                && node.get("query_block").is_none())
            .is_none_or(|sorted| find(sorted, &|node| node["table_name"] == "m").is_none()),
            "the backlog is sorted: {plan:#}"
        );
        // Of 50 rows by 20,200 only the pending ones may be read.
        run(&db, "FLUSH STATUS").await;
        let statement = statement(&dialect, 50);
        assert_eq!(db.query_all_raw(statement).await.unwrap().len(), 50);
        let read = Statement::from_string(
            DbBackend::MySql,
            "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.session_status \
             WHERE variable_name IN ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT')",
        );
        let read: i64 = db
            .query_one_raw(read)
            .await
            .unwrap()
            .unwrap()
            .try_get_by_index(0)
            .unwrap();
        assert!(read < 1_000, "{read} index entries were read to fetch 50 rows");
    }
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill(&db, &dialect).await;
    for analyze in ["", "ANALYZE"] {
        if !analyze.is_empty() {
            run(&db, "ANALYZE").await;
        }
        let explained = with_prefix(statement(&dialect, 50), "EXPLAIN QUERY PLAN");
        let rows = db.query_all_raw(explained).await.unwrap();
        let plan: Vec<String> = rows
            .iter()
            .map(|row| row.try_get("", "detail").unwrap())
            .collect();
        assert!(
            plan[0].starts_with("SCAN m USING INDEX outbox_messages_pending"),
            "{plan:?}"
        );
        assert!(
            plan.iter()
                .any(|line| line.contains("SEARCH d USING INDEX outbox_messages_delayed")),
            "{plan:?}"
        );
        assert!(
            !plan.iter().any(|line| line.contains("B-TREE FOR ORDER BY")),
            "{plan:?}"
        );
    }
}

async fn open(variable: &'static str) -> Option<(DatabaseConnection, TableNames)> {
    Some(connect(backend_url(variable)?).await)
}

/// One connection, so that what is measured is this session's.
async fn connect(url: String) -> (DatabaseConnection, TableNames) {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(1)
        .sqlx_logging(false)
        .acquire_timeout(Duration::from_secs(60));
    let db = Database::connect(options).await.unwrap();
    let name = format!("p{}", &Uuid::now_v7().simple().to_string()[14..]);
    let names = match db.get_database_backend() {
        DbBackend::Postgres => {
            run(&db, &format!("CREATE SCHEMA {name}")).await;
            TableNames::new().with_schema(name).unwrap()
        }
        DbBackend::MySql => TableNames::new().with_prefix(format!("{name}_")).unwrap(),
        _ => TableNames::new(),
    };
    crate::migration::migrate_with(&db, &names).await.unwrap();
    (db, names)
}

async fn run(db: &DatabaseConnection, sql: &str) {
    db.execute_unprepared(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Published rows before and behind the pending ones, and one aggregate that is halted.
async fn fill(db: &DatabaseConnection, dialect: &Dialect) {
    for (count, status) in [(PUBLISHED, 1), (PENDING, 0), (PUBLISHED, 1), (PENDING, 0)] {
        insert(db, dialect, count, status).await;
    }
    let sql = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence, halted_by) VALUES ('order', 'halted', 1, 1)",
        dialect.aggregates
    );
    run(db, &sql).await;
}

async fn insert(db: &DatabaseConnection, dialect: &Dialect, count: i64, status: i64) {
    let (numbers, id, text) = match dialect.backend {
        DbBackend::Postgres => (
            format!("generate_series(1, {count})"),
            "gen_random_uuid()",
            "n::text",
        ),
        DbBackend::MySql => (
            format!("(SELECT seq AS n FROM seq_1_to_{count})"),
            "UNHEX(MD5(UUID()))",
            "n",
        ),
        _ => (
            format!(
                "(WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t)"
            ),
            "randomblob(16)",
            "n",
        ),
    };
    let sql = format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, \
         payload, headers, status, created_at) SELECT {id}, n % 64, 'order', {text}, n, 'order.placed', 1, 'application/json', \
         'x', '{{}}', {status}, {} FROM {numbers} AS {}",
        dialect.messages,
        dialect.now(),
        if dialect.backend == DbBackend::Postgres {
            "numbers (n)"
        } else {
            "numbers"
        },
    );
    run(db, &sql).await;
}

fn statement(dialect: &Dialect, limit: u32) -> Statement {
    let partitions: Vec<i64> = (0..64).collect();
    let excluding = [
        Aggregate::new("order", "excluded"),
        Aggregate::new("order", "too"),
    ];
    fetch::statement(dialect, &partitions, &excluding, limit).unwrap()
}

fn with_prefix(mut statement: Statement, prefix: &str) -> Statement {
    statement.sql = format!("{prefix} {}", statement.sql);
    statement
}

async fn explain(db: &DatabaseConnection, dialect: &Dialect, limit: u32, prefix: &str) -> String {
    let row = db
        .query_one_raw(with_prefix(statement(dialect, limit), prefix))
        .await
        .unwrap()
        .unwrap();
    row.try_get_by_index::<serde_json::Value>(0)
        .map(|plan| plan.to_string())
        .unwrap_or_else(|_| row.try_get_by_index(0).unwrap())
}

/// The first node of a plan that matches, depth first.
fn find<'p>(
    node: &'p serde_json::Value,
    matches: &dyn Fn(&serde_json::Value) -> bool,
) -> Option<&'p serde_json::Value> {
    if matches(node) {
        return Some(node);
    }
    match node {
        serde_json::Value::Array(nodes) => nodes.iter().find_map(|node| find(node, matches)),
        serde_json::Value::Object(fields) => fields.values().find_map(|node| find(node, matches)),
        _ => None,
    }
}

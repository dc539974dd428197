//! Checks that fetching scans the index of pending rows and nothing else, whatever the statistics say (O24).
//!
//! Method: a table with many published, waiting and blocked rows and few that are due, with and without statistics. These tests are not in `tests/`,
//! because they examine the statements themselves.

use std::time::Duration;

use outbox_core::MessageId;
use outbox_core::store::RowKey;
use outbox_testing::backend_url;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::dialect::fetch::Scope;
use crate::dialect::key::Key;
use crate::names::TableNames;

mod backlog;
mod beside_others;
mod blocks;
mod of_aggregate;
mod order;
mod pages;
mod pauses;

const PUBLISHED: i64 = 20_000;
const PENDING: i64 = 200;
const BLOCKED: i64 = 5_000;
const IN_FLIGHT: i64 = 2_000;

#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    // Nothing waits and nothing is blocked, as mostly.
    for table in [&dialect.messages, &dialect.blocks] {
        run(&db, &format!("VACUUM ANALYZE {table}")).await;
    }
    fill(&db, &dialect).await;
    for statistics in ["empty", "stale", "fresh"] {
        if statistics != "empty" {
            run(&db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        if statistics == "stale" {
            // When the table was analysed, next to nothing was pending.
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
        let read = scan["Actual Rows"].as_f64().unwrap()
            + scan["Rows Removed by Filter"].as_f64().unwrap_or_default();
        assert!(read <= 50.0, "{read} rows were read to fetch 50: {plan:#}");
        assert!(
            find(&plan, &|node| node.get("JIT").is_some()).is_none(),
            "the plan is compiled: {plan:#}"
        );
        let blocks = find(&plan, &|node| node["Alias"] == "h").expect("a look-up of the blocks");
        let read = blocks["Actual Rows"].as_f64().unwrap() * blocks["Actual Loops"].as_f64().unwrap()
            + blocks["Rows Removed by Filter"].as_f64().unwrap_or_default();
        assert!(read <= 50.0, "{read} blocks were read for 50 rows: {plan:#}");

        let waiting = dialect.waiting_of(&blocked_keys(64), &[1, 2, 3].map(in_flight_row), 16);
        let plan = explain_statement(
            &db,
            waiting,
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)",
        )
        .await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let scan = find(&plan, &|node| node["Index Name"] == "outbox_messages_waiting");
        let scan = scan.unwrap_or_else(|| panic!("not by aggregate: {plan:#}"));
        assert_eq!(scan["Actual Loops"], 64, "{plan:#}");
    }
}

/// Over many days, the scan merges their indexes of pending rows and stops at its limit, whether days are full or still empty.
#[tokio::test]
async fn postgres_by_day() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    let (db, names) = connect_empty(url).await;
    crate::migration::partitioned::migrate_with(&db, &names)
        .await
        .unwrap();
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    // Taken once, so that no day ends in between.
    let now = format!(
        "to_timestamp({})",
        time::OffsetDateTime::now_utc().unix_timestamp()
    );
    for day in (0..9).rev() {
        let make = format!(
            "SELECT {}(({now} AT TIME ZONE 'UTC')::date - {day})",
            dialect.make_day
        );
        run(&db, &make).await;
        let at = format!("{now} + (clock_timestamp() - statement_timestamp()) - interval '{day} days'");
        insert_at(&db, &dialect, PUBLISHED / 4, 1, &at).await;
        insert_at(&db, &dialect, PENDING / 8, 0, &at).await;
        insert_at(&db, &dialect, BLOCKED / 8, 3, &at).await;
    }
    for statistics in ["none", "stale", "fresh"] {
        if statistics != "none" {
            run(&db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        if statistics == "stale" {
            insert(&db, &dialect, 10 * PENDING, 0).await;
        }
        let json = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
        let plan = explain(&db, &dialect, 50, json).await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        // Each day gives its first row to the merge.
        let read = read_by_index(&plan);
        assert!(read <= 50.0 + 13.0, "{read} rows were read to fetch 50: {plan:#}");
        assert!(
            find(&plan, &|node| node.get("JIT").is_some()).is_none(),
            "the plan is compiled: {plan:#}"
        );

        // The plan that is cached for many settlements, while the coming days are empty.
        run(&db, "SET plan_cache_mode = force_generic_plan").await;
        let settle = crate::dialect::postgres::settle_published(&dialect, &[], &[], true).sql;
        run(
            &db,
            &format!("PREPARE settle (int8[], int8[], int8[], uuid[]) AS {settle}"),
        )
        .await;
        let cached = "EXPLAIN (COSTS OFF, FORMAT JSON) EXECUTE settle ('{7}', '{0}', '{1, 2, 3}', '{}')";
        let row = Statement::from_string(DbBackend::Postgres, cached);
        let row = db.query_one_raw(row).await.unwrap().unwrap();
        read_by_index(&row.try_get_by_index(0).unwrap());
        run(&db, "DEALLOCATE settle; RESET plan_cache_mode").await;
    }
}

/// How many messages of the days a plan has read through indexes, without sorting. The default partition is left out: it is small, and for a minute
/// its plan may be bad. A fraction, because PostgreSQL 18 reports the mean over all loops.
fn read_by_index(plan: &serde_json::Value) -> f64 {
    let is_day = |node: &serde_json::Value| {
        let table = node["Relation Name"].as_str();
        table.is_some_and(|table| table.starts_with("outbox_messages_2"))
    };
    let mut read = 0.0;
    let mut visit = |node: &serde_json::Value| match node["Node Type"].as_str() {
        Some("Index Scan" | "Bitmap Heap Scan") if is_day(node) => {
            read += node["Actual Rows"].as_f64().unwrap_or_default()
                + node["Rows Removed by Filter"].as_f64().unwrap_or_default();
        }
        Some("Sort") => assert!(!is_day(&node["Plans"][0]), "a day is sorted: {plan:#}"),
        Some("Seq Scan") => assert!(!is_day(node), "a day is read as a whole: {plan:#}"),
        _ => {}
    };
    for_each(plan, &mut visit);
    read
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
        let read = entries_read(&db).await;
        assert!(read < 1_000, "{read} index entries were read to fetch 50 rows");

        run(&db, "FLUSH STATUS").await;
        let waiting = dialect.waiting_row_ids_of(&blocked_keys(64), 16);
        assert_eq!(db.query_all_raw(waiting).await.unwrap().len(), 64);
        let read = entries_read(&db).await;
        assert!(
            read < 1_000,
            "{read} index entries were read to find 64 waiting rows"
        );
    }
}

/// The locking read of head rows looks them up in the primary key, be they two or as many as a statement has: a scan would lock the heads of others.
#[tokio::test]
async fn heads_on_mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    for rows in [5, 5_000] {
        let sql = format!(
            "INSERT IGNORE INTO {} (aggregate_type, aggregate_id, last_sequence, recorded_at) SELECT 'order', n, 1, UTC_TIMESTAMP(6) FROM {}",
            dialect.aggregates,
            numbers(&dialect, rows)
        );
        run(&db, &sql).await;
        for count in [2, 500] {
            let heads: Vec<_> = (1..=count)
                .map(|n: i64| (outbox_core::Aggregate::new("order", n.to_string()), 1))
                .collect();
            let statement = crate::dialect::mysql::read_heads(&dialect, &heads);
            let plan = explain_statement(&db, statement, "EXPLAIN FORMAT=JSON").await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let table = find(&plan, &|node| node.get("table_name").is_some()).expect("a table");
            assert_eq!(table["key"], "PRIMARY", "{count} of {rows}: {plan:#}");
            assert_eq!(table["access_type"], "range", "{count} of {rows}: {plan:#}");
        }
    }
}

/// A plan that was cached while nothing was blocked must not read all blocks for each row afterwards.
#[tokio::test]
async fn postgres_cached_before_a_burst_of_blocks() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    insert(&db, &dialect, PENDING, 0).await;
    run(&db, &format!("VACUUM ANALYZE {}", dialect.blocks)).await;
    let plan = explain(&db, &dialect, 50, "EXPLAIN (COSTS OFF, FORMAT JSON)").await;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let blocks = find(&plan, &|node| node["Alias"] == "h").expect("a look-up of the blocks");
    assert_eq!(blocks["Index Name"], "outbox_blocks_pk", "{plan:#}");
}

/// Index entries and rows that this session has read since `FLUSH STATUS`.
async fn entries_read(db: &DatabaseConnection) -> i64 {
    let read = Statement::from_string(
        DbBackend::MySql,
        "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.session_status \
         WHERE variable_name IN ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT')",
    );
    let row = db.query_one_raw(read).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
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
                .any(|line| line.contains("SEARCH h USING PRIMARY KEY")),
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

async fn connect(url: String) -> (DatabaseConnection, TableNames) {
    let (db, names) = connect_empty(url).await;
    crate::migration::migrate_with(&db, &names).await.unwrap();
    (db, names)
}

/// One connection, so that the measurements are those of this session.
async fn connect_empty(url: String) -> (DatabaseConnection, TableNames) {
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
    (db, names)
}

async fn run(db: &DatabaseConnection, sql: &str) {
    db.execute_unprepared(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Published, waiting and delayed rows before and behind the pending ones, and many blocks.
async fn fill(db: &DatabaseConnection, dialect: &Dialect) {
    for (count, status) in [
        (PUBLISHED, 1),
        (BLOCKED, 3),
        (PENDING, 0),
        (PUBLISHED, 1),
        (PENDING, 0),
        (IN_FLIGHT, 0),
    ] {
        insert(db, dialect, count, status).await;
    }
    let sql = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT 'order', {}, 7, {} FROM {}",
        dialect.blocks,
        text(dialect),
        dialect.now(),
        numbers(dialect, BLOCKED),
    );
    run(db, &sql).await;
    let later = dialect.now_plus("3600000000");
    run(
        db,
        &format!(
            "UPDATE {} SET available_at = {later} WHERE status = 0 AND sequence < 20",
            dialect.messages
        ),
    )
    .await;
}

/// A table of the numbers from 1.
fn numbers(dialect: &Dialect, count: i64) -> String {
    match dialect.backend {
        DbBackend::Postgres => format!("generate_series(1, {count}) AS numbers (n)"),
        DbBackend::MySql => format!("(SELECT seq AS n FROM seq_1_to_{count}) AS numbers"),
        _ => format!(
            "(WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t) AS numbers"
        ),
    }
}

/// The aggregate id for a number.
fn text(dialect: &Dialect) -> &'static str {
    match dialect.backend {
        DbBackend::Postgres => "n::text",
        _ => "n",
    }
}

async fn insert(db: &DatabaseConnection, dialect: &Dialect, count: i64, status: i64) {
    insert_at(db, dialect, count, status, dialect.now()).await;
}

async fn insert_at(db: &DatabaseConnection, dialect: &Dialect, count: i64, status: i64, created_at: &str) {
    insert_rows(db, dialect, (count, status), "n % 64", created_at).await;
}

/// Rows of some partitions.
async fn insert_of(db: &DatabaseConnection, dialect: &Dialect, count: i64, status: i64, partition: &str) {
    insert_rows(db, dialect, (count, status), partition, dialect.now()).await;
}

async fn insert_rows(
    db: &DatabaseConnection,
    dialect: &Dialect,
    (count, status): (i64, i64),
    partition: &str,
    created_at: &str,
) {
    let id = match dialect.backend {
        DbBackend::Postgres => "gen_random_uuid()",
        DbBackend::MySql => "UNHEX(MD5(UUID()))",
        _ => "randomblob(16)",
    };
    let sql = format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, \
         payload, headers, status, created_at) SELECT {id}, {partition}, 'order', {}, n, 'order.placed', 1, 'application/json', \
         'x', '{{}}', {status}, {created_at} FROM {}",
        dialect.messages,
        text(dialect),
        numbers(dialect, count),
    );
    run(db, &sql).await;
}

const PARTITIONS: [i64; 64] = {
    let mut partitions = [0; 64];
    let mut n = 0;
    while n < 64 {
        partitions[n] = n as i64;
        n += 1;
    }
    partitions
};

/// A row in flight.
fn in_flight_row(row_id: i64) -> RowKey {
    RowKey {
        row_id,
        id: Some(MessageId::from(Uuid::from_u128(row_id.unsigned_abs().into()))),
    }
}

/// The scan with many rows in flight, which are the last ones.
fn statement(dialect: &Dialect, limit: u32) -> Statement {
    let last = 2 * PUBLISHED + BLOCKED + 2 * PENDING + IN_FLIGHT;
    let in_flight: Vec<RowKey> = (last - IN_FLIGHT..last).map(in_flight_row).collect();
    dialect.scan(Scope {
        partitions: &PARTITIONS,
        in_flight: &in_flight,
        limit: i64::from(limit),
    })
}

/// Keys of blocked aggregates.
fn blocked_keys(count: i64) -> Vec<Key> {
    let key = |n: i64| Key::from(&outbox_core::Aggregate::new("order", n.to_string()));
    (1..=count).map(key).collect()
}

fn with_prefix(mut statement: Statement, prefix: &str) -> Statement {
    statement.sql = format!("{prefix} {}", statement.sql);
    statement
}

async fn explain(db: &DatabaseConnection, dialect: &Dialect, limit: u32, prefix: &str) -> String {
    explain_statement(db, statement(dialect, limit), prefix).await
}

async fn explain_statement(db: &DatabaseConnection, statement: Statement, prefix: &str) -> String {
    let row = db
        .query_one_raw(with_prefix(statement, prefix))
        .await
        .unwrap()
        .unwrap();
    row.try_get_by_index::<serde_json::Value>(0)
        .map(|plan| plan.to_string())
        .unwrap_or_else(|_| row.try_get_by_index(0).unwrap())
}

fn for_each(node: &serde_json::Value, visit: &mut dyn FnMut(&serde_json::Value)) {
    visit(node);
    match node {
        serde_json::Value::Array(nodes) => nodes.iter().for_each(|node| for_each(node, visit)),
        serde_json::Value::Object(fields) => fields.values().for_each(|node| for_each(node, visit)),
        _ => {}
    }
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

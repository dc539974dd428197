//! Checks that a relay that shares the partitions reads no rows or blocks of other partitions, whatever the statistics say.
//!
//! 100,000 rows of others are pending, and as many wait. `OUTBOX_TEST_FOREIGN_ROWS=1000000` makes it more by hand; what may be read stays the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::store::{own, session};

/// Half of the partitions, and the number of rows that are pending in this half.
const HALF: std::ops::Range<i64> = 0..32;
const OWN: i64 = 50;

/// The number of rows that are pending in the other half, before those of this half.
fn foreign() -> i64 {
    let rows = std::env::var("OUTBOX_TEST_FOREIGN_ROWS").ok();
    rows.map_or(100_000, |rows| rows.parse().expect("a number of rows"))
}

/// A relay that shares the partitions reads no pending rows of the others, also with a plan that was cached while nothing was pending.
#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    check_postgres(&db, &names).await;
}

#[tokio::test]
async fn postgres_by_day() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    let (db, names) = connect_empty(url).await;
    crate::migration::partitioned::migrate_with(&db, &names)
        .await
        .unwrap();
    for day in 0..3 {
        let make = names.table(DbBackend::Postgres, "outbox_make_day");
        run(
            &db,
            &format!("SELECT {make}((now() AT TIME ZONE 'UTC')::date - {day})"),
        )
        .await;
    }
    check_postgres(&db, &names).await;
}

async fn check_postgres(db: &DatabaseConnection, names: &TableNames) {
    let dialect = Dialect::new(DbBackend::Postgres, names);
    insert(db, &dialect, PUBLISHED, 1).await;
    // Nothing is pending and nothing is blocked, as mostly.
    run(db, &format!("VACUUM ANALYZE {}", dialect.messages)).await;
    run(db, &format!("VACUUM ANALYZE {}", dialect.blocks)).await;
    // A generic plan from a time at which nothing was pending, as in a relay that has run for a while.
    run(db, "SET plan_cache_mode = force_generic_plan").await;
    let partitions: Vec<i64> = HALF.collect();
    let scope = Scope {
        partitions: &partitions,
        in_flight: &[1, 2, 3].map(in_flight_row),
        limit: 1_000,
    };
    let scan = dialect.scan_own(scope);
    let alone = dialect.alone(scope, &[]);
    let bounds: Vec<(i64, i64)> = partitions
        .iter()
        .map(|partition| (*partition, i64::MAX))
        .collect();
    let below = dialect.pending_below(&bounds, 1_000);
    let blocks = dialect.ended_blocks_own(scope, 100, &[]);
    let all = [
        ("scan", scan),
        ("alone", alone),
        ("below", below),
        ("blocks", blocks),
    ];
    for (name, statement) in &all {
        prepare(db, name, statement).await;
    }
    for status in [0, 3] {
        insert_of(db, &dialect, foreign(), status, "32 + n % 32").await;
        insert_of(db, &dialect, OWN, status, "n % 32").await;
    }
    make_alone(db, &dialect).await;
    // So many that PostgreSQL, once it knows how they lie, would rather read all of them in the order of their time, if it may.
    insert_blocks(db, &dialect, foreign(), "32 + n % 32").await;
    insert_blocks(db, &dialect, OWN, "n % 32").await;
    for statistics in ["stale", "fresh"] {
        if statistics == "fresh" {
            run(db, &format!("ANALYZE {}", dialect.messages)).await;
            run(db, &format!("ANALYZE {}", dialect.blocks)).await;
        }
        for (name, statement) in &all {
            let values = literals(statement);
            let explain = format!(
                "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE {name} ({values})"
            );
            let row = Statement::from_string(DbBackend::Postgres, explain);
            let row = db.query_one_raw(row).await.unwrap().unwrap();
            let plan: serde_json::Value = row.try_get_by_index(0).unwrap();
            let whole = &plan[0]["Plan"];
            assert_eq!(
                whole["Actual Rows"].as_f64(),
                Some(OWN as f64),
                "{name}: {plan:#}"
            );
            let pages = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| whole[key].as_i64().unwrap());
            let pages: i64 = pages.iter().sum();
            // Each partition is looked up in the index; with daily tables, in the index of each day.
            assert!(pages < 1_500, "{pages} pages to {name} {OWN} rows: {plan:#}");
            for_each(&plan, &mut |node| {
                let removed = node["Rows Removed by Filter"].as_f64().unwrap_or_default();
                assert!(removed <= OWN as f64, "{name} reads in vain: {plan:#}");
            });
        }
    }
}

/// Prepares a statement under a name.
async fn prepare(db: &DatabaseConnection, name: &str, statement: &Statement) {
    let types = statement
        .values
        .as_ref()
        .unwrap()
        .0
        .iter()
        .map(|value| match value {
            sea_orm::Value::Array(sea_orm::sea_query::ArrayType::Uuid, _) => "uuid[]",
            sea_orm::Value::Array(..) => "int8[]",
            _ => "int8",
        });
    let types: Vec<&str> = types.collect();
    run(
        db,
        &format!("PREPARE {name} ({}) AS {}", types.join(", "), statement.sql),
    )
    .await;
}

/// The values of a statement as literals.
fn literals(statement: &Statement) -> String {
    let values = statement.values.as_ref().unwrap().0.iter();
    let texts: Vec<String> = values
        .map(|value| match value {
            sea_orm::Value::Array(_, Some(values)) => {
                let items = values.iter().map(|value| value.to_string().replace('\'', ""));
                format!("'{{{}}}'", items.collect::<Vec<_>>().join(","))
            }
            value => value.to_string(),
        })
        .collect();
    texts.join(", ")
}

/// Makes the waiting messages unsequenced and due; those of other partitions are due first.
async fn make_alone(db: &DatabaseConnection, dialect: &Dialect) {
    let update = format!(
        "UPDATE {} SET sequence = NULL, available_at = created_at WHERE status = 3",
        dialect.messages
    );
    run(db, &update).await;
}

async fn insert_blocks(db: &DatabaseConnection, dialect: &Dialect, count: i64, partition: &str) {
    let sql = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT '{count:0>40}', {}, {partition}, {} FROM {}",
        dialect.blocks,
        text(dialect),
        dialect.now(),
        numbers(dialect, count),
    );
    run(db, &sql).await;
}

#[tokio::test]
async fn mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill_beside(&db, &dialect).await;
    let partitions: Vec<i64> = HALF.collect();
    for (name, statement) in statements(&dialect, &partitions) {
        run(&db, "FLUSH STATUS").await;
        let rows = db.query_all_raw(statement).await.unwrap();
        assert_eq!(rows.len(), OWN as usize, "{name}");
        let read = entries_read(&db).await;
        assert!(read < 500, "{read} entries were read to {name} {OWN} rows");
    }
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_beside(&db, &dialect).await;
    let partitions: Vec<i64> = HALF.collect();
    for (name, statement) in statements(&dialect, &partitions) {
        let explained = with_prefix(statement.clone(), "EXPLAIN QUERY PLAN");
        let rows = db.query_all_raw(explained).await.unwrap();
        let plan: Vec<String> = rows
            .iter()
            .map(|row| row.try_get("", "detail").unwrap())
            .collect();
        let look_ups = plan.iter().filter(|line| line.contains("(partition_no=?"));
        assert_eq!(look_ups.count(), partitions.len(), "{name}: {plan:?}");
        assert!(
            !plan
                .iter()
                .any(|line| line.starts_with("SCAN m") || line.contains("B-TREE FOR ORDER")),
            "{name}: {plan:?}"
        );
        assert_eq!(
            db.query_all_raw(statement).await.unwrap().len(),
            OWN as usize,
            "{name}"
        );
    }
}

async fn fill_beside(db: &DatabaseConnection, dialect: &Dialect) {
    insert(db, dialect, PUBLISHED, 1).await;
    for status in [0, 3] {
        insert_of(db, dialect, foreign(), status, "32 + n % 32").await;
        insert_of(db, dialect, OWN, status, "n % 32").await;
    }
    make_alone(db, dialect).await;
    insert_blocks(db, dialect, foreign() / 10, "32 + n % 32").await;
    insert_blocks(db, dialect, OWN, "n % 32").await;
}

fn statements(dialect: &Dialect, partitions: &[i64]) -> [(&'static str, Statement); 4] {
    let bounds: Vec<(i64, i64)> = partitions
        .iter()
        .map(|partition| (*partition, i64::MAX))
        .collect();
    let scope = Scope {
        partitions,
        in_flight: &[],
        limit: 1_000,
    };
    [
        ("scan", dialect.first_pending(partitions, 100)),
        ("alone", dialect.first_alone(partitions, 100, &[])),
        ("below", dialect.pending_below(&bounds, 1_000)),
        ("blocks", dialect.ended_blocks_own(scope, 100, &[])),
    ]
}

/// The number of own partitions with many rows in flight, and how many rows are fetched beside those.
const CROWDED: i64 = 12;
const ROWS: i64 = 1_000;

/// A few own partitions have many rows in flight, and far more pending ones.
async fn keys_in_flight(db: &DatabaseConnection, dialect: &Dialect) -> Vec<RowKey> {
    insert_of(db, dialect, 80_000, 0, "n % 32").await;
    let mut in_flight = Vec::new();
    for partition in 0..CROWDED {
        let first = db.query_all_raw(dialect.first_pending(&[partition], 186));
        let keys = first.await.unwrap();
        let row_ids = keys.iter().map(|row| row.try_get::<i64>("", "row_id").unwrap());
        in_flight.extend(row_ids.map(in_flight_row));
    }
    in_flight
}

/// Fetches row ids with many rows in flight. Returns how many index entries the statements could read at most.
async fn fetch_keys(db: &DatabaseConnection, dialect: Dialect, in_flight: Vec<RowKey>) -> i64 {
    let asked_for = Arc::new(AtomicI64::new(0));
    let sum = asked_for.clone();
    let isolation = session::Isolation::default();
    let keys = session::call(db, &isolation, async move |session| {
        let partitions: Vec<i64> = HALF.collect();
        let scope = Scope {
            partitions: &partitions,
            in_flight: &in_flight,
            limit: ROWS,
        };
        let look_up = |partitions: &[i64], limit: i64| {
            sum.fetch_add(limit * partitions.len() as i64, Ordering::Relaxed);
            dialect.first_pending(partitions, limit)
        };
        own::first(&session, scope, look_up).await
    });
    let (keys, more) = keys.await.unwrap();
    assert_eq!(
        (keys.len() as i64, more),
        (ROWS / HALF.end * HALF.end, true),
        "of each partition its share"
    );
    asked_for.load(Ordering::Relaxed)
}

/// Rows in flight must be skipped, but not once for each partition.
fn check_read(read: i64, in_flight: usize) {
    let bound = 2 * ROWS + 8 * in_flight as i64;
    assert!(
        read < bound,
        "{read} entries to fetch {ROWS} rows beside {in_flight} in flight"
    );
}

#[tokio::test]
async fn much_in_flight_on_mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    let in_flight = keys_in_flight(&db, &dialect).await;
    run(&db, "FLUSH STATUS").await;
    let count = in_flight.len();
    fetch_keys(&db, dialect, in_flight).await;
    check_read(entries_read(&db).await, count);
}

#[tokio::test]
async fn much_in_flight_on_sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    let in_flight = keys_in_flight(&db, &dialect).await;
    let count = in_flight.len();
    check_read(fetch_keys(&db, dialect, in_flight).await, count);
}

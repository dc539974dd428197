//! Checks that a step of releasing does not read all that the pause holds once for each row that it releases: the end of
//! a pause of many aggregates would never come.

use super::*;
use crate::dialect::pauses::held_until;

/// What the pause held.
const HELD: i64 = 20_000;
/// What a step releases.
const STEP: i64 = 64;
/// A step may read what is held once, which costs milliseconds, and not once for each row.
const READ_MAX: f64 = 2.0 * HELD as f64;

/// Aggregates and unsequenced messages that the pause of a type holds.
async fn fill_held(db: &DatabaseConnection, dialect: &Dialect) {
    let held = dialect.time(&held_until(b"order").to_string());
    let blocks = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT 'order', {}, n % 64, {held} FROM {}",
        dialect.blocks,
        text(dialect),
        numbers(dialect, HELD),
    );
    run(db, &blocks).await;
    insert(db, dialect, HELD, 3).await;
    let alone = format!(
        "UPDATE {} SET sequence = NULL, available_at = {held} WHERE status = 3",
        dialect.messages
    );
    run(db, &alone).await;
}

/// What a step does with blocks in the middle of those that are held, and with messages.
async fn step(db: &DatabaseConnection, dialect: &Dialect) -> [(&'static str, Statement); 3] {
    let keys = blocked_keys(STEP);
    let ids = format!(
        "SELECT row_id FROM {} ORDER BY row_id DESC LIMIT {STEP}",
        dialect.messages
    );
    let ids = db
        .query_all_raw(Statement::from_string(dialect.backend, ids))
        .await
        .unwrap();
    let ids: Vec<i64> = ids.iter().map(|row| row.try_get("", "row_id").unwrap()).collect();
    [
        ("lock", dialect.lock_blocks(&keys)),
        ("blocks", dialect.release_blocks(&keys)),
        ("alone", dialect.release_alone(b"order", &ids)),
    ]
}

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
    check_postgres(&db, &names).await;
}

async fn check_postgres(db: &DatabaseConnection, names: &TableNames) {
    let dialect = Dialect::new(DbBackend::Postgres, names);
    fill_held(db, &dialect).await;
    for statistics in ["none", "fresh"] {
        if statistics == "fresh" {
            run(db, &format!("ANALYZE {}", dialect.messages)).await;
            run(db, &format!("ANALYZE {}", dialect.blocks)).await;
        }
        for (name, statement) in step(db, &dialect).await {
            let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
            let plan = explain_statement(db, statement, explain).await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let mut read = 0.0;
            for_each(&plan, &mut |node| {
                let count = |key: &str| node[key].as_f64().unwrap_or_default();
                let rows = count("Actual Rows") + count("Rows Removed by Filter");
                read += (rows + count("Rows Removed by Join Filter")) * count("Actual Loops");
            });
            assert!(
                read <= READ_MAX,
                "{name}, statistics {statistics}: {read} rows for {STEP}: {plan:#}"
            );
        }
    }
}

#[tokio::test]
async fn mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill_held(&db, &dialect).await;
    for analyze in [false, true] {
        if analyze {
            let analyze = format!("ANALYZE TABLE {}, {}", dialect.messages, dialect.blocks);
            run(&db, &analyze).await;
        }
        for (name, statement) in step(&db, &dialect).await {
            run(&db, "FLUSH STATUS").await;
            db.execute_raw(statement).await.unwrap();
            let read = entries_read(&db).await;
            assert!(read as f64 <= READ_MAX, "{name}: {read} entries for {STEP}");
        }
    }
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_held(&db, &dialect).await;
    for analyze in [false, true] {
        if analyze {
            run(&db, "ANALYZE").await;
        }
        for (name, statement) in step(&db, &dialect).await {
            let explained = with_prefix(statement, "EXPLAIN QUERY PLAN");
            let rows = db.query_all_raw(explained).await.unwrap();
            let plan: Vec<String> = rows
                .iter()
                .map(|row| row.try_get("", "detail").unwrap())
                .collect();
            let by = match name {
                "alone" => "USING INTEGER PRIMARY KEY (rowid=?)",
                _ => "USING PRIMARY KEY (aggregate_type=? AND aggregate_id=?)",
            };
            assert!(plan.iter().any(|line| line.contains(by)), "{name}: {plan:?}");
        }
    }
}

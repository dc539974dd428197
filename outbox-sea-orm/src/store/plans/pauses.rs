//! Checks that the end of a pause reads what that pause held, and not what another one holds; and that a step of releasing reads what it releases, however
//! much is held.

use super::*;
use crate::dialect::pauses::held_until;
use crate::store::{pauses, session};

/// What the pause of another type holds, and the one that ends.
const FOREIGN: i64 = 100_000;
const OWN: i64 = 50;
/// At most so many are asked for.
const LIMIT: i64 = 512;
/// What a step releases here.
const STEP: i64 = 64;
/// A step may read each of its rows several times: once for each part of its plan.
const STEP_READS: f64 = 10.0 * STEP as f64;

/// Aggregates and unsequenced messages of `foreign` and then of `own`, held by a pause of each. The one of `own` has ended.
async fn fill_held(db: &DatabaseConnection, dialect: &Dialect) {
    for (aggregate_type, count) in [("foreign", FOREIGN), ("own", OWN)] {
        let held = dialect.time(&held_until(aggregate_type.as_bytes()).to_string());
        let numbers = numbers(dialect, count);
        let blocks = format!(
            "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT '{aggregate_type}', {}, n % 64, {held} FROM {numbers}",
            dialect.blocks,
            text(dialect),
        );
        run(db, &blocks).await;
        insert(db, dialect, count, 3).await;
        let alone = format!(
            "UPDATE {} SET sequence = NULL, aggregate_type = '{aggregate_type}', available_at = {held} WHERE status = 3 AND aggregate_type = 'order'",
            dialect.messages
        );
        run(db, &alone).await;
    }
    for (aggregate_type, ends_at) in [("foreign", "NULL"), ("own", dialect.now())] {
        let pause = format!(
            "INSERT INTO {} (aggregate_type, reason, paused_by, paused_at, ends_at) VALUES ('{aggregate_type}', 'overrun', 'alice', {}, {ends_at})",
            dialect.pauses,
            dialect.now()
        );
        run(db, &pause).await;
    }
}

fn searches(dialect: &Dialect) -> [(&'static str, Statement); 2] {
    [
        ("blocks", dialect.held_blocks(b"own", LIMIT)),
        ("alone", dialect.held_alone(b"own", LIMIT)),
    ]
}

/// What a step does, with some of what the other pause holds.
async fn step(db: &DatabaseConnection, dialect: &Dialect) -> [(&'static str, Statement); 3] {
    let key = |n: i64| Key::from(&outbox_core::Aggregate::new("foreign", n.to_string()));
    let keys: Vec<Key> = (1..=STEP).map(key).collect();
    let ids = format!(
        "SELECT row_id FROM {} WHERE aggregate_type = 'foreign' ORDER BY row_id DESC LIMIT {STEP}",
        dialect.messages
    );
    let ids = Statement::from_string(dialect.backend, ids);
    let ids = db.query_all_raw(ids).await.unwrap();
    let ids: Vec<i64> = ids.iter().map(|row| row.try_get("", "row_id").unwrap()).collect();
    assert_eq!(ids.len(), STEP as usize);
    [
        ("lock", dialect.lock_blocks(&keys)),
        ("release", dialect.release_blocks(&keys)),
        ("release alone", dialect.release_alone(b"foreign", &ids)),
    ]
}

/// Ends the pause in the store: all that it held is released, and nothing of the other one.
async fn finish(db: &DatabaseConnection, dialect: &Dialect) {
    let isolation = session::Isolation::default();
    let mut more = true;
    // Three transactions are needed. On a busy machine a call may begin one only.
    for _ in 0..5 {
        let statements = dialect.clone();
        let finished = session::call(db, &isolation, async move |session| {
            pauses::finish(&session, &statements).await
        });
        more = finished.await.unwrap();
        if !more {
            break;
        }
    }
    assert!(!more, "all of it is released");
    for (name, statement) in searches(dialect) {
        assert_eq!(db.query_all_raw(statement).await.unwrap().len(), 0, "{name}");
    }
    for (name, statement) in [
        ("blocks", dialect.held_blocks(b"foreign", FOREIGN + 1)),
        ("alone", dialect.held_alone(b"foreign", FOREIGN + 1)),
    ] {
        let held = db.query_all_raw(statement).await.unwrap().len();
        assert_eq!(held as i64, FOREIGN, "{name} of the other pause");
    }
}

#[tokio::test]
async fn the_end_of_a_pause_reads_its_own_on_postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    check_postgres(&db, &names).await;
}

#[tokio::test]
async fn the_end_of_a_pause_reads_its_own_in_daily_tables() {
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
    insert(db, &dialect, PUBLISHED, 1).await;
    run(db, &format!("VACUUM ANALYZE {}", dialect.messages)).await;
    run(db, &format!("VACUUM ANALYZE {}", dialect.blocks)).await;
    fill_held(db, &dialect).await;
    check_step(db, &dialect, "stale").await;
    for statistics in ["stale", "fresh"] {
        if statistics == "fresh" {
            run(db, &format!("ANALYZE {}", dialect.messages)).await;
            run(db, &format!("ANALYZE {}", dialect.blocks)).await;
        }
        for (name, statement) in searches(&dialect) {
            let explain = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, FORMAT JSON)";
            let plan = explain_statement(db, statement, explain).await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let whole = &plan[0]["Plan"];
            assert_eq!(
                whole["Actual Rows"].as_f64(),
                Some(OWN as f64),
                "{name}: {plan:#}"
            );
            let pages = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| whole[key].as_i64().unwrap());
            let pages: i64 = pages.iter().sum();
            assert!(
                pages < 1_000,
                "{statistics}: {pages} pages for {OWN} {name}: {plan:#}"
            );
        }
    }
    check_step(db, &dialect, "fresh").await;
    finish(db, &dialect).await;
}

/// What a step reads on PostgreSQL. It is taken back.
async fn check_step(db: &DatabaseConnection, dialect: &Dialect, statistics: &str) {
    for (name, statement) in step(db, dialect).await {
        run(db, "BEGIN").await;
        let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
        let plan = explain_statement(db, statement, explain).await;
        run(db, "ROLLBACK").await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let mut read = 0.0;
        for_each(&plan, &mut |node| {
            let count = |key: &str| node[key].as_f64().unwrap_or_default();
            let removed = count("Rows Removed by Filter") + count("Rows Removed by Join Filter");
            read += (count("Actual Rows") + removed) * count("Actual Loops");
        });
        assert!(
            read <= STEP_READS,
            "{statistics}: {read} rows to {name} {STEP}: {plan:#}"
        );
    }
}

#[tokio::test]
async fn the_end_of_a_pause_reads_its_own_on_mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill_held(&db, &dialect).await;
    for analyze in [false, true] {
        if analyze {
            run(
                &db,
                &format!("ANALYZE TABLE {}, {}", dialect.messages, dialect.blocks),
            )
            .await;
        }
        for (name, statement) in searches(&dialect) {
            run(&db, "FLUSH STATUS").await;
            let rows = db.query_all_raw(statement).await.unwrap();
            assert_eq!(rows.len(), OWN as usize, "{name}");
            let read = entries_read(&db).await;
            assert!(read < 500, "{read} entries were read to find {OWN} {name}");
        }
        for (name, statement) in step(&db, &dialect).await {
            // In this order, because flushing commits.
            run(&db, "FLUSH STATUS").await;
            run(&db, "BEGIN").await;
            db.execute_raw(statement).await.unwrap();
            let read = entries_read(&db).await;
            run(&db, "ROLLBACK").await;
            assert!(
                read as f64 <= STEP_READS,
                "{read} entries were read to {name} {STEP}"
            );
        }
    }
    finish(&db, &dialect).await;
}

#[tokio::test]
async fn the_end_of_a_pause_reads_its_own_on_sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_held(&db, &dialect).await;
    for analyze in [false, true] {
        if analyze {
            run(&db, "ANALYZE").await;
        }
        for ((name, statement), by) in searches(&dialect).into_iter().zip([
            "outbox_blocks_due (blocked_until=?",
            "outbox_messages_waiting_until (partition_no=? AND available_at=?)",
        ]) {
            let explained = with_prefix(statement.clone(), "EXPLAIN QUERY PLAN");
            let rows = db.query_all_raw(explained).await.unwrap();
            let plan: Vec<String> = rows
                .iter()
                .map(|row| row.try_get("", "detail").unwrap())
                .collect();
            assert!(plan.len() == 1 && plan[0].contains(by), "{name}: {plan:?}");
            assert_eq!(
                db.query_all_raw(statement).await.unwrap().len(),
                OWN as usize,
                "{name}"
            );
        }
        for ((name, statement), by) in step(&db, &dialect).await.into_iter().zip([
            "USING PRIMARY KEY (aggregate_type=? AND aggregate_id=?)",
            "USING PRIMARY KEY (aggregate_type=? AND aggregate_id=?)",
            "USING INTEGER PRIMARY KEY (rowid=?)",
        ]) {
            let rows = with_prefix(statement, "EXPLAIN QUERY PLAN");
            let rows = db.query_all_raw(rows).await.unwrap();
            let plan: Vec<String> = rows
                .iter()
                .map(|row| row.try_get("", "detail").unwrap())
                .collect();
            assert!(plan.iter().any(|line| line.contains(by)), "{name}: {plan:?}");
        }
    }
    finish(&db, &dialect).await;
}

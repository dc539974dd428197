//! Checks that the end of a pause reads what that pause held, and not what another one holds.

use super::*;
use crate::dialect::pauses::held_until;
use crate::store::{pauses, session};

/// What the pause of another type holds, and the one that ends.
const FOREIGN: i64 = 100_000;
const OWN: i64 = 50;
/// At most so many are asked for.
const LIMIT: i64 = 512;

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

/// Ends the pause in the store: all that it held is released, and nothing of the other one.
async fn finish(db: &DatabaseConnection, dialect: &Dialect) {
    let (isolation, statements) = (session::Isolation::default(), dialect.clone());
    let finished = session::call(db, &isolation, async move |session| {
        pauses::finish(&session, &statements).await
    });
    assert!(!finished.await.unwrap(), "all of it is released in one call");
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
    fill_held(db, &dialect).await;
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
    finish(db, &dialect).await;
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
    }
    finish(&db, &dialect).await;
}

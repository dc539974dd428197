//! Checks that locking, releasing and ending the blocks of some aggregates looks each of them up, also while the statistics are from before a burst of blocks.

use outbox_core::Aggregate;

use super::*;

const BURST: i64 = 10_000;
const KEYS: i64 = 256;

#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    let analyze = format!("ANALYZE {}", dialect.blocks);
    for table in [&dialect.blocks, &dialect.messages] {
        run(&db, &format!("VACUUM ANALYZE {table}")).await;
    }
    let blocks = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT 'order', n::text, 7, {} FROM {}",
        dialect.blocks,
        dialect.now(),
        numbers(&dialect, BURST),
    );
    run(&db, &blocks).await;
    // The messages of other aggregates that wait.
    insert(&db, &dialect, BURST, 3).await;
    for statistics in ["of an empty table", "fresh"] {
        if statistics == "fresh" {
            run(&db, &analyze).await;
            run(&db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        for (name, statement) in [
            ("lock", dialect.lock_blocks(&blocked_keys(KEYS))),
            ("release", dialect.release_blocks(&blocked_keys(KEYS))),
            ("end", dialect.end_blocks(&blocked_keys(KEYS))),
            ("resume", dialect.resume(&Aggregate::new("order", "1"))),
        ] {
            run(&db, "BEGIN").await;
            let changed = db.execute_raw(statement.clone()).await.unwrap().rows_affected();
            run(&db, "ROLLBACK").await;
            // A message waits behind each of them, so none of them ends.
            let expected = match name {
                "end" => 0,
                "resume" => 1,
                _ => KEYS as u64,
            };
            assert_eq!(changed, expected, "{name}");
            run(&db, "BEGIN").await;
            let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
            let plan = explain_statement(&db, statement, explain).await;
            run(&db, "ROLLBACK").await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let mut read = 0.0;
            for_each(&plan, &mut |node| {
                let count = |key: &str| node[key].as_f64().unwrap_or_default();
                let rows = count("Actual Rows") + count("Rows Removed by Filter");
                read += (rows + count("Rows Removed by Join Filter")) * count("Actual Loops");
            });
            // Each row is counted once for each part of the plan.
            assert!(
                read <= (15 * KEYS) as f64,
                "{name}, statistics {statistics}: {read} rows were read: {plan:#}"
            );
        }
    }
}

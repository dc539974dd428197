//! Checks that locking the blocks of some aggregates looks each of them up, also while the statistics are from before a burst of blocks.

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
    run(&db, &analyze).await;
    let blocks = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT 'order', n::text, 7, {} FROM {}",
        dialect.blocks,
        dialect.now(),
        numbers(&dialect, BURST),
    );
    run(&db, &blocks).await;
    for statistics in ["of an empty table", "fresh"] {
        if statistics == "fresh" {
            run(&db, &analyze).await;
        }
        let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
        let lock = dialect.lock_blocks(&blocked_keys(KEYS));
        assert_eq!(
            db.query_all_raw(lock.clone()).await.unwrap().len(),
            usize::try_from(KEYS).unwrap()
        );
        let plan: serde_json::Value =
            serde_json::from_str(&explain_statement(&db, lock, explain).await).unwrap();
        let mut read = 0.0;
        for_each(&plan, &mut |node| {
            let count = |key: &str| node[key].as_f64().unwrap_or_default();
            let rows = count("Actual Rows") + count("Rows Removed by Filter");
            read += (rows + count("Rows Removed by Join Filter")) * count("Actual Loops");
        });
        // Each row is counted once for each part of the plan.
        assert!(
            read <= (10 * KEYS) as f64,
            "statistics {statistics}: {read} rows were read: {plan:#}"
        );
    }
}

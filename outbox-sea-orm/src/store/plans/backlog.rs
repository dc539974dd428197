//! Checks that the counts of the backlog end at their limit, also while the statistics are from before the backlog.

use super::*;

const BACKLOG: i64 = 20_000;
const LIMIT: u64 = 500;
/// Each of the counts may read so much and no more: its limit, and where the index begins.
const MOST: f64 = LIMIT as f64 + 10.0;

/// Pending, waiting and dead rows, and blocks.
async fn fill_backlog(db: &DatabaseConnection, dialect: &Dialect) {
    for status in [0, 3, 2] {
        insert(db, dialect, BACKLOG, status).await;
    }
    let blocks = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) SELECT 'order', {}, 7, {} FROM {}",
        dialect.blocks,
        text(dialect),
        dialect.now_plus("3600000000"),
        numbers(dialect, BACKLOG),
    );
    run(db, &blocks).await;
}

async fn counts(db: &DatabaseConnection, dialect: &Dialect) -> [i64; 4] {
    let row = db.query_one_raw(dialect.backlog(LIMIT)).await.unwrap().unwrap();
    ["pending", "waiting", "dead", "backing_off"].map(|name| row.try_get("", name).unwrap())
}

async fn check_postgres(db: &DatabaseConnection, names: &TableNames) {
    let dialect = Dialect::new(DbBackend::Postgres, names);
    for statistics in ["of empty tables", "fresh"] {
        run(db, &format!("ANALYZE {}, {}", dialect.messages, dialect.blocks)).await;
        if statistics == "of empty tables" {
            fill_backlog(db, &dialect).await;
        }
        assert_eq!(counts(db, &dialect).await, [LIMIT as i64; 4]);
        let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
        let plan = explain_statement(db, dialect.backlog(LIMIT), explain).await;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        for_each(&plan, &mut |node| {
            if node.get("Index Name").is_some() || node.get("Relation Name").is_some() {
                let count = |key: &str| node[key].as_f64().unwrap_or_default();
                let read = count("Actual Rows") + count("Rows Removed by Filter");
                assert!(
                    read <= MOST,
                    "statistics {statistics}: {read} rows were read: {node:#}"
                );
            }
        });
    }
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

#[tokio::test]
async fn mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill_backlog(&db, &dialect).await;
    run(&db, "FLUSH STATUS").await;
    assert_eq!(counts(&db, &dialect).await, [LIMIT as i64; 4]);
    let read = entries_read(&db).await;
    // Each of the four counts reads its entries, and then counts them. So do the two searches for the oldest due rows.
    assert!(read <= 14 * LIMIT as i64, "{read} entries were read");
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_backlog(&db, &dialect).await;
    assert_eq!(counts(&db, &dialect).await, [LIMIT as i64; 4]);
    let explained = with_prefix(dialect.backlog(LIMIT), "EXPLAIN QUERY PLAN");
    let rows = db.query_all_raw(explained).await.unwrap();
    let plan: Vec<String> = rows
        .iter()
        .map(|row| row.try_get("", "detail").unwrap())
        .collect();
    let reads = plan.iter().filter(|line| line.contains("outbox_"));
    for line in reads.clone() {
        let by_index =
            line.contains(" INDEX outbox_") || line.contains(" INDEX sqlite_autoindex_outbox_pauses");
        assert!(by_index, "{plan:?}");
    }
    assert_eq!(reads.count(), 13, "{plan:?}");
    assert!(!plan.iter().any(|line| line.contains("B-TREE")), "{plan:?}");
}

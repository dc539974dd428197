//! Checks that whoever looks at one aggregate reads a bounded number of rows: neither the table as a whole, nor the backlog of other partitions.

use std::num::NonZeroU32;

use outbox_core::{Aggregate, MessageStatus, PublishedSearch, Selection};

use super::*;

/// Pending rows of everybody, and rows that a search may look at.
const BACKLOG: i64 = 50_000;
const LOOKED_AT: i64 = 2_000;

/// An aggregate of which one row is pending.
fn order() -> Aggregate {
    Aggregate::new("order", "4711")
}

fn search() -> PublishedSearch {
    let most = NonZeroU32::new(u32::try_from(LOOKED_AT).unwrap()).unwrap();
    PublishedSearch {
        aggregate: Some(order()),
        from: None,
        until: None,
        looked_at_max: most,
        limit: most,
    }
}

/// The statements of a timeline.
fn statements(dialect: &Dialect) -> [(&'static str, Statement); 5] {
    let of = |status| dialect.list(&Selection::all().aggregate(&order()).status(status), None, 26);
    [
        ("pending", of(MessageStatus::Pending)),
        ("waiting", of(MessageStatus::Waiting)),
        ("dead", of(MessageStatus::Dead)),
        ("search", dialect.search_published(&search())),
        ("end", dialect.search_end(&search())),
    ]
}

/// A backlog over all partitions with one row of the aggregate, which is in the partition that its name gives.
async fn fill_backlog(db: &DatabaseConnection, dialect: &Dialect) {
    insert(db, dialect, PUBLISHED, 1).await;
    insert(db, dialect, BACKLOG, 0).await;
    // Each number names an aggregate, and the rows of fill have the partition of the number, not of the name.
    let right = format!(
        "UPDATE {} SET partition_no = {} WHERE aggregate_id = '4711'",
        dialect.messages,
        order().partition()
    );
    run(db, &right).await;
}

async fn check_postgres(db: &DatabaseConnection, dialect: &Dialect) {
    insert(db, dialect, PUBLISHED, 1).await;
    // Nothing is pending, as mostly.
    run(db, &format!("VACUUM ANALYZE {}", dialect.messages)).await;
    fill_backlog(db, dialect).await;
    for statistics in ["stale", "fresh"] {
        if statistics == "fresh" {
            run(db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        for (name, statement) in statements(dialect) {
            let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
            let plan = explain_statement(db, statement, explain).await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let mut read = 0.0;
            for_each(&plan, &mut |node| {
                let table = node["Relation Name"].as_str().unwrap_or_default();
                if !table.starts_with("outbox_messages") {
                    return;
                }
                assert_ne!(
                    node["Node Type"], "Seq Scan",
                    "{name}, statistics {statistics}: {plan:#}"
                );
                let count = |key: &str| node[key].as_f64().unwrap_or_default();
                let rows = count("Actual Rows") + count("Rows Removed by Filter");
                read += (rows + count("Rows Removed by Index Recheck")) * count("Actual Loops");
            });
            // Of the backlog, one partition of 64; of a search, what it may look at, and the one behind it.
            let most = match name {
                "search" | "end" => LOOKED_AT + 1,
                _ => BACKLOG / 64 + 10,
            };
            assert!(
                read <= most as f64,
                "{name}, statistics {statistics}: {read} rows were read: {plan:#}"
            );
        }
    }
}

#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    check_postgres(&db, &Dialect::new(DbBackend::Postgres, &names)).await;
}

#[tokio::test]
async fn mariadb() {
    let Some((db, names)) = open("OUTBOX_TEST_MARIADB_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::MySql, &names);
    fill_backlog(&db, &dialect).await;
    run(&db, &format!("ANALYZE TABLE {}", dialect.messages)).await;
    for (name, statement) in statements(&dialect) {
        run(&db, "FLUSH STATUS").await;
        db.query_all_raw(statement).await.unwrap();
        let read = entries_read(&db).await;
        let most = match name {
            // The ids are read out of the index, kept, and read again to look up their rows.
            "search" | "end" => 3 * LOOKED_AT,
            _ => BACKLOG / 64 + 50,
        };
        assert!(read <= most, "{name}: {read} index entries were read");
    }
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_backlog(&db, &dialect).await;
    for (name, statement) in statements(&dialect) {
        let rows = db
            .query_all_raw(with_prefix(statement, "EXPLAIN QUERY PLAN"))
            .await
            .unwrap();
        let plan: Vec<String> = rows
            .iter()
            .map(|row| row.try_get("", "detail").unwrap())
            .collect();
        let is_whole = |line: &&String| {
            let of_messages = line.starts_with("SCAN m") || line.starts_with("SCAN i");
            of_messages && !line.contains("INDEX") && !line.contains("(subquery")
        };
        // A search goes over the ids, and ends at its limit.
        assert!(
            plan.iter().find(is_whole).is_none() || name == "search",
            "{name}: {plan:?}"
        );
        if name == "search" {
            assert!(
                plan.iter().any(|line| line.contains("outbox_messages_id")),
                "{plan:?}"
            );
        }
        if name == "pending" {
            assert!(
                plan.iter().any(|line| line.contains("outbox_messages_pending")),
                "{plan:?}"
            );
        }
    }
}

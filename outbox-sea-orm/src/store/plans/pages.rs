//! Checks that a page of messages is read through an index and stops at its limit. A sequential scan or a sort grows with the table, and the plan does not: so a small
//! table shows what happens to 7,000,000 rows.

use outbox_core::{MessageId, MessageStatus, PageFrom, Place, Selection};

use super::*;

const LIMIT: i64 = 50;

/// Each kind of page: its name, its selection and where it begins.
fn pages() -> Vec<(&'static str, Selection, PageFrom)> {
    let id = MessageId::from(Uuid::from_u128(u128::MAX / 2));
    let place = PageFrom::Before(Place { row_id: 20_000, id });
    let mut pages = vec![
        ("newest", Selection::all(), PageFrom::Newest),
        ("before", Selection::all(), place),
        ("after", Selection::all(), PageFrom::After(id)),
        (
            "published",
            Selection::all().status(MessageStatus::Published),
            PageFrom::Newest,
        ),
    ];
    for (name, status) in [
        ("pending", MessageStatus::Pending),
        ("waiting", MessageStatus::Waiting),
        ("dead", MessageStatus::Dead),
    ] {
        pages.push((name, Selection::all().status(status), PageFrom::Newest));
        pages.push((name, Selection::all().status(status), place));
    }
    pages
}

async fn fill_table(db: &DatabaseConnection, dialect: &Dialect) {
    for status in [1, 0, 3, 2, 1] {
        insert(db, dialect, PUBLISHED, status).await;
    }
}

async fn check_postgres(db: &DatabaseConnection, names: &TableNames) {
    let dialect = Dialect::new(DbBackend::Postgres, names);
    for statistics in ["of an empty table", "fresh"] {
        run(db, &format!("ANALYZE {}", dialect.messages)).await;
        if statistics == "of an empty table" {
            fill_table(db, &dialect).await;
        }
        for (name, selection, from) in pages() {
            let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
            let plan = explain_statement(db, dialect.page(&selection, None, from, LIMIT), explain).await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let mut read = 0.0;
            for_each(&plan, &mut |node| {
                let of_messages = node["Alias"].as_str().is_some_and(|alias| alias.starts_with('m'));
                if !of_messages {
                    return;
                }
                let kind = node["Node Type"].as_str().unwrap();
                let is_empty = node["Actual Rows"] == 0 || node["Actual Rows"] == 0.0;
                assert!(
                    kind.contains("Index") || is_empty,
                    "{name}, {statistics}: {plan:#}"
                );
                read += node["Actual Rows"].as_f64().unwrap_or_default()
                    + node["Rows Removed by Filter"].as_f64().unwrap_or_default();
            });
            // About two of five rows are published.
            assert!(
                read <= 10.0 * LIMIT as f64,
                "{name}, {statistics}: {read} rows: {plan:#}"
            );
        }
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
    fill_table(&db, &dialect).await;
    for (name, selection, from) in pages() {
        run(&db, "FLUSH STATUS").await;
        db.query_all_raw(dialect.page(&selection, None, from, LIMIT))
            .await
            .unwrap();
        let read = entries_read(&db).await;
        assert!(read <= 10 * LIMIT, "{name}: {read} entries were read");
    }
}

#[tokio::test]
async fn sqlite() {
    let (db, names) = connect("sqlite::memory:".to_owned()).await;
    let dialect = Dialect::new(DbBackend::Sqlite, &names);
    fill_table(&db, &dialect).await;
    for (name, selection, from) in pages() {
        let explained = with_prefix(dialect.page(&selection, None, from, LIMIT), "EXPLAIN QUERY PLAN");
        let rows = db.query_all_raw(explained).await.unwrap();
        let plan: Vec<String> = rows
            .iter()
            .map(|row| row.try_get("", "detail").unwrap())
            .collect();
        assert!(
            plan[0].contains("m USING INDEX outbox_messages_"),
            "{name}: {plan:?}"
        );
        assert!(
            !plan.iter().any(|line| line.contains("B-TREE")),
            "{name}: {plan:?}"
        );
    }
}

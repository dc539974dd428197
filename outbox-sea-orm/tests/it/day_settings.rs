//! Daily tables (PostgreSQL) beside publications, and made by sessions with other settings.

use std::time::Duration;

use outbox_core::{OutboxStore as _, PurgeRequest};
use outbox_sea_orm::SqlStore;
use outbox_sea_orm::migration::partitioned;
use outbox_testing::backend_url;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database};
use uuid::Uuid;

use crate::odd::begin_with;
use crate::support::{Backend, TestDb, int};

/// The upper bound of a `timestamptz` shows where a day begins.
const BOUNDS: &str = "SELECT count(*) FROM pg_class c WHERE c.relispartition AND c.relkind = 'r' \
                      AND pg_get_expr(c.relpartbound, c.oid) LIKE 'FOR VALUES FROM (''____-__-__ 00:00:00+00'') TO (''____-__-__ 00:00:00+00'')'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_begin_at_midnight_utc_in_every_session() {
    let Some(test) = TestDb::empty(Backend::PostgresByDay, "settings of sessions").await else {
        return;
    };
    let elsewhere = vec!["SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'"];
    let db = test.connect_again(|options| begin_with(options, elsewhere)).await;
    partitioned::migrate_with(&db, &test.names).await.unwrap();
    let schema = test.names.schema().unwrap();
    let bounds = format!("{BOUNDS} AND c.relnamespace = '{schema}'::regnamespace");
    assert_eq!(test.int(&bounds).await, 4);
}

/// Such a publication forbids to delete rows of a table without a key, and sends the rows of every table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_are_made_and_dropped_beside_a_publication_of_all_tables() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    // A publication of all tables is one of a database.
    let name = format!("d{}", &Uuid::now_v7().simple().to_string()[14..]);
    let admin = Database::connect(ConnectOptions::new(&url)).await.unwrap();
    let execute = async |sql: String| admin.execute_unprepared(&sql).await.unwrap();
    execute(format!("CREATE DATABASE {name}")).await;
    let (server, _) = url.rsplit_once('/').unwrap();
    let db = Database::connect(ConnectOptions::new(format!("{server}/{name}")))
        .await
        .unwrap();
    db.execute_unprepared("CREATE PUBLICATION everything FOR ALL TABLES")
        .await
        .unwrap();
    partitioned::migrate(&db).await.unwrap();
    assert_eq!(int(&db, BOUNDS).await, 4);
    let old = "SELECT outbox_make_day((clock_timestamp() AT TIME ZONE 'UTC')::date - 9)";
    db.execute_unprepared(old).await.unwrap();
    // Without a day that a purge makes anew.
    db.execute_unprepared("DO $$ BEGIN EXECUTE 'DROP TABLE outbox_messages_' || to_char((clock_timestamp() AT TIME ZONE 'UTC')::date + 3, 'YYYYMMDD'); END $$")
        .await
        .unwrap();
    assert_eq!(int(&db, BOUNDS).await, 4);
    let store = SqlStore::new(db.clone());
    for _ in 0..20 {
        let request = PurgeRequest {
            older_than: Some(Duration::from_secs(2 * 24 * 3600)),
            keys_older_than: Duration::from_secs(2 * 24 * 3600),
            after: None,
            limit: 100.try_into().unwrap(),
        };
        store.purge(request).await.unwrap();
    }
    assert_eq!(
        int(&db, BOUNDS).await,
        4,
        "one day is made, the old one is dropped"
    );
    let pages = "SELECT min(pg_relation_size(c.oid)) FROM pg_class c WHERE c.relispartition AND c.relkind = 'r' AND c.relname <> 'outbox_messages_default'";
    assert!(int(&db, pages).await > 900_000, "the days have their empty pages");
    db.close().await.unwrap();
    execute(format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

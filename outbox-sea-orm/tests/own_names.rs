//! A process with other table names does not write to the default tables by mistake.
//!
//! Each case starts this program again, because the names in use are process-wide. Plain SQL
//! creates both sets of tables, because it marks no names as used.

#![expect(clippy::unwrap_used, reason = "an unexpected failure must fail the test")]

use std::process::Command;

use outbox_core::{DomainEvent, OutboxStore};
use outbox_sea_orm::{
    Executor, OutboxConfig, OutboxConnection, RecordError, SaveError, SaveWithEvents, SqlStore, TableNames,
    migration, record,
};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait,
};

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

async fn check(case: &str, db: &DatabaseConnection) {
    match case {
        "store" => {
            let store = SqlStore::new(db.clone()).with_names(&own()).unwrap();
            check_refused(db).await;
            store.backlog().await.unwrap();
        }
        "configuration" => {
            let mut config = OutboxConfig::default();
            config.names = own();
            let outbox = OutboxConnection::new(db.clone(), config);
            check_refused(db).await;
            order().insert_with_events(&outbox, |_| [placed()]).await.unwrap();
            assert_eq!(count(db, "own_outbox_messages").await, 1);
        }
        "migration" => migration::migrate_with(db, &own()).await.unwrap(),
        _ => {
            let _ = OutboxConfig::default().with_names(own());
            check_refused(db).await;
            let _ = OutboxConfig::default().with_names(TableNames::new());
            order().insert_with_events(db, |_| [placed()]).await.unwrap();
            assert_eq!(count(db, "outbox_messages").await, 1);
            return;
        }
    }
    check_refused(db).await;
}

fn own() -> TableNames {
    TableNames::new().with_prefix("own_").unwrap()
}

fn order() -> order::ActiveModel {
    order::ActiveModel { id: sea_orm::NotSet }
}

fn placed() -> OrderPlaced {
    OrderPlaced { order_id: 1 }
}

async fn check_refused(db: &DatabaseConnection) {
    let orders = count(db, "orders").await;
    refused(db).await;

    let tx = db.begin().await.unwrap();
    order()
        .insert_with_events(&tx, |_| None::<OrderPlaced>)
        .await
        .unwrap();
    refused(&tx).await;
    let error = record(&tx, [placed()]).await.unwrap_err();
    assert!(matches!(error, RecordError::DefaultNames { .. }), "{error:?}");
    tx.commit().await.unwrap();

    assert_eq!(count(db, "orders").await, orders + 1);
    assert_eq!(count(db, "outbox_messages").await, 0);
    assert_eq!(count(db, "outbox_aggregates").await, 0);
}

async fn refused<D: Executor>(db: &D) {
    let error = order().insert_with_events(db, |_| [placed()]).await.unwrap_err();
    let text = error.to_string();
    let SaveError::Record(RecordError::DefaultNames { in_use }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(in_use, "own_outbox_messages");
    assert!(
        text.contains("own_outbox_messages") && text.contains("OutboxConnection"),
        "{text}"
    );
}

async fn count(db: &DatabaseConnection, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    let statement = Statement::from_string(DbBackend::Sqlite, sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

const ALONE: &str = "OUTBOX_OWN_NAMES_ALONE";

#[test]
fn other_names_close_the_default_tables() {
    let Ok(case) = std::env::var(ALONE) else {
        for case in ["store", "configuration", "migration", "chosen default"] {
            let output = Command::new(std::env::current_exe().unwrap())
                .env(ALONE, case)
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{case}: {stderr}");
        }
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut options = ConnectOptions::new("sqlite::memory:");
        options.max_connections(1); // Each connection has its own `:memory:` database.
        let db = Database::connect(options).await.unwrap();
        let mut sql = "CREATE TABLE orders (id INTEGER PRIMARY KEY);".to_owned();
        for names in [TableNames::new(), own()] {
            sql.push_str(&migration::sql(DbBackend::Sqlite, &names).unwrap());
        }
        db.execute_unprepared(&sql).await.unwrap();
        check(&case, &db).await;
    });
}

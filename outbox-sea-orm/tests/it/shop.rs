//! The application under test. All tests share its two tables, so each test marks its rows.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use outbox_core::{DomainEvent, MessageContext};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::support::TestDb;

pub mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub marker: String,
        pub total_cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

pub mod customer {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "save_customers")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub marker: String,
    }

    #[async_trait::async_trait]
    impl ActiveModelBehavior for ActiveModel {
        /// Depending on the order's marker, the hook rolls back, as MySQL does after a deadlock, or
        /// ignores an error.
        async fn before_save<C: ConnectionTrait>(self, db: &C, _insert: bool) -> Result<Self, DbErr> {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            super::Gate::pass(self.id.as_ref()).await;
            match self.marker.as_ref().as_str() {
                "undone" => {
                    db.execute_unprepared("ROLLBACK").await?;
                    return Err(DbErr::Custom("deadlock".to_owned()));
                }
                "swallows" => drop(db.execute_unprepared("SELECT nonsense").await),
                _ => {}
            }
            Ok(self)
        }

        async fn after_save<C: ConnectionTrait>(model: Model, db: &C, _insert: bool) -> Result<Model, DbErr> {
            if model.marker == "swallows after" {
                drop(db.execute_unprepared("SELECT nonsense").await);
            }
            super::Gate::pass(&format!("{} is saved", model.id)).await;
            Ok(model)
        }
    }
}

#[derive(Default)]
pub struct Gate {
    reached: Notify,
    open: Notify,
}

static GATES: LazyLock<Mutex<HashMap<String, Arc<Gate>>>> = LazyLock::new(Mutex::default);

impl Gate {
    pub fn close(id: &str) -> Arc<Self> {
        let mut gates = GATES.lock().unwrap();
        gates.entry(id.to_owned()).or_default().clone()
    }

    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    pub fn open(&self) {
        self.open.notify_one();
    }

    async fn pass(id: &str) {
        let gate = GATES.lock().unwrap().get(id).cloned();
        if let Some(gate) = gate {
            gate.reached.notify_one();
            gate.open.notified().await;
        }
    }
}

#[derive(Debug, PartialEq, DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 2)]
pub struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub order_id: i32,
    pub total_cents: i64,
}

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "customer", name = "greeted")]
pub struct CustomerGreeted {
    #[domain_event(aggregate_id)]
    pub customer: String,
    #[domain_event(dedup_key)]
    pub greeting: String,
}

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "described")]
pub struct OrderDescribed {
    #[domain_event(aggregate_id)]
    pub order_id: i32,
    pub text: String,
}

pub fn placed(order_id: i32) -> OrderPlaced {
    OrderPlaced {
        order_id,
        total_cents: 1,
    }
}

pub fn placed_of(order: &order::Model) -> [OrderPlaced; 1] {
    [OrderPlaced {
        order_id: order.id,
        total_cents: order.total_cents,
    }]
}

pub struct Shop {
    pub test: TestDb,
    pub marker: String,
}

impl Shop {
    pub async fn open(test: TestDb) -> Self {
        create_tables(&test.db).await;
        Self {
            test,
            marker: Uuid::now_v7().to_string(),
        }
    }

    pub fn order(&self, total_cents: i64) -> order::ActiveModel {
        use sea_orm::Set;
        order::ActiveModel {
            marker: Set(self.marker.clone()),
            total_cents: Set(total_cents),
            ..Default::default()
        }
    }

    pub fn customer(&self, id: &str) -> customer::ActiveModel {
        use sea_orm::Set;
        customer::ActiveModel {
            id: Set(format!("{id}{}", self.marker)),
            marker: Set(self.marker.clone()),
        }
    }

    pub async fn orders(&self) -> i64 {
        let marker = &self.marker;
        let count = format!("SELECT COUNT(*) FROM save_orders WHERE marker = '{marker}'");
        self.test.int(&count).await
    }

    pub async fn customers(&self) -> i64 {
        let marker = &self.marker;
        let count = format!("SELECT COUNT(*) FROM save_customers WHERE marker = '{marker}'");
        self.test.int(&count).await
    }

    pub async fn recorded(&self) -> Vec<(String, Option<u64>)> {
        let rows = self.test.fetch_all().await;
        rows.into_iter()
            .map(|row| row.message.unwrap())
            .map(|m| (m.event_type.clone(), m.sequence))
            .collect()
    }
}

async fn create_tables(db: &DatabaseConnection) {
    let key = match db.get_database_backend() {
        DbBackend::Postgres => "SERIAL PRIMARY KEY",
        DbBackend::MySql => "INTEGER PRIMARY KEY AUTO_INCREMENT",
        _ => "INTEGER PRIMARY KEY AUTOINCREMENT",
    };
    let index = match db.get_database_backend() {
        DbBackend::MySql => ", INDEX (marker)",
        _ => "",
    };
    for sql in [
        format!(
            "CREATE TABLE IF NOT EXISTS save_orders (id {key}, marker VARCHAR(60), total_cents BIGINT{index})"
        ),
        "CREATE TABLE IF NOT EXISTS save_customers (id VARCHAR(100) PRIMARY KEY, marker VARCHAR(60))"
            .to_owned(),
    ] {
        if db.execute_unprepared(&sql).await.is_err() {
            db.execute_unprepared(&sql).await.unwrap();
        }
    }
}

pub fn context() -> MessageContext {
    MessageContext {
        correlation_id: Some("request-17".to_owned()),
        causation_id: Some("command-4".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: Some("vendor=1".to_owned()),
    }
}

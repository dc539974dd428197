//! The shop's own tables, and the migrations of outbox and inbox.
//!
//! Invariant: `effects` has no unique key. A double effect creates two rows, which the ledger
//! counts.

use anyhow::{Context as _, Result};
use sea_orm::{ConnectionTrait as _, DatabaseConnection};

use crate::setup::Part;

pub(crate) mod orders {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub(crate) struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub(crate) order_id: i64,
        pub(crate) customer_id: String,
        pub(crate) order_date: TimeDate,
        pub(crate) shipped_date: Option<TimeDate>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

pub(crate) async fn migrate(db: &DatabaseConnection, part: Part) -> Result<()> {
    let what = || format!("cannot create the tables of {}", part.name());
    if Part::OUTBOXES.contains(&part) {
        outbox_sea_orm::migrate(db).await.with_context(what)?;
    }
    if Part::CONSUMERS.contains(&part) {
        outbox_inbox::migrate(db).await.with_context(what)?;
    }
    const EFFECTS: &str = "effects (message_id VARCHAR(36) NOT NULL)";
    let tables: &[&str] = match part {
        Part::Service => &[
            "orders (order_id BIGINT NOT NULL PRIMARY KEY, customer_id VARCHAR(64) NOT NULL, \
             order_date DATE NOT NULL, shipped_date DATE NULL)",
        ],
        Part::Inventory => &[
            "stock (product_id BIGINT NOT NULL PRIMARY KEY, units BIGINT NOT NULL)",
            EFFECTS,
        ],
        Part::Billing => &[
            "accounts (customer_id VARCHAR(64) NOT NULL PRIMARY KEY, amount_cents BIGINT NOT NULL)",
            EFFECTS,
        ],
        Part::Shipping => &[
            "shipments (order_id BIGINT NOT NULL PRIMARY KEY, shipped_date VARCHAR(10) NOT NULL)",
            EFFECTS,
        ],
        Part::Notifications => &[],
    };
    for table in tables {
        let create = format!("CREATE TABLE {table}");
        db.execute_unprepared(&create).await.with_context(what)?;
    }
    Ok(())
}

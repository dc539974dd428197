//! The shop's own tables, and the migrations of outbox and inbox beside them.
//!
//! Invariant: `effects` has no unique key. A double effect makes two rows there, which the ledger can see.

use outbox_sea_orm::migrate as migrate_outbox;
use sea_orm::{ConnectionTrait, DatabaseConnection};

use crate::failure::{Doing, Failure};
use crate::setup::Part;

/// Entity of the service: one row per order.
pub(crate) mod orders {
    use sea_orm::entity::prelude::*;

    /// An order. Its key is the number on the paper order, so the client assigns it.
    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub(crate) struct Model {
        /// Number of the order.
        #[sea_orm(primary_key, auto_increment = false)]
        pub(crate) order_id: i64,
        /// The customer.
        pub(crate) customer_id: String,
        /// The day of the order.
        pub(crate) order_date: TimeDate,
        /// The day of the shipment, if shipped.
        pub(crate) shipped_date: Option<TimeDate>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// Creates the tables of a part.
pub(crate) async fn migrate(db: &DatabaseConnection, part: Part) -> Result<(), Failure> {
    let what = format!("make the tables of {}", part.name());
    if Part::OUTBOXES.contains(&part) {
        migrate_outbox(db).await.or_cannot(&what)?;
    }
    if Part::CONSUMERS.contains(&part) {
        outbox_inbox::migrate(db).await.or_cannot(&what)?;
    }
    for table in tables(part) {
        db.execute_unprepared(table).await.or_cannot(&what)?;
    }
    Ok(())
}

fn tables(part: Part) -> &'static [&'static str] {
    const EFFECTS: &str = "CREATE TABLE effects (message_id VARCHAR(36) NOT NULL)";
    match part {
        Part::Service => &[
            "CREATE TABLE orders (order_id BIGINT NOT NULL PRIMARY KEY, customer_id VARCHAR(64) NOT NULL, \
             order_date DATE NOT NULL, shipped_date DATE NULL)",
        ],
        Part::Inventory => &[
            "CREATE TABLE stock (product_id BIGINT NOT NULL PRIMARY KEY, units BIGINT NOT NULL)",
            EFFECTS,
        ],
        Part::Billing => &[
            "CREATE TABLE accounts (customer_id VARCHAR(64) NOT NULL PRIMARY KEY, amount_cents BIGINT NOT NULL)",
            EFFECTS,
        ],
        Part::Shipping => &[
            "CREATE TABLE shipments (order_id BIGINT NOT NULL PRIMARY KEY, shipped_date VARCHAR(10) NOT NULL)",
            EFFECTS,
        ],
        // The effects are lines in the file of notices.
        Part::Notifications => &[],
    }
}

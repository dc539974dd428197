//! `cargo run -p examples --example 10_constraint`
//!
//! Strategy `constraint`: the handler's own table has a unique key already, so a second row for the same thing is refused anyway. A violation of the
//! named constraint says that the message has had its effect. Everything else that the database refuses is a failure. The strategy remembers a message as
//! long as the handler's row exists. The inbox writes no row for a message that is delivered once. A repeated delivery is counted before the handler runs,
//! and that row stays until it expires. No server is needed.

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase, dead_letters, handled};
use sea_orm::entity::prelude::*;
use sea_orm::{ExprTrait as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

mod reservation {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "reservations")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        #[sea_orm(unique)]
        pub order_id: u32,
        pub units: u32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod stock {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "stock")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub product: String,
        #[sea_orm(extra = "CHECK (units >= 0)")]
        pub units: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u32,
    units: u32,
}

/// Names as the database reports them: PostgreSQL and MySQL the constraint's, SQLite the columns'. On MySQL and MariaDB a primary key is called
/// `PRIMARY` in every table, so give the table a unique key with a name of its own there.
#[idempotent_handler(
    consumer = "inventory",
    strategy = constraint("reservations_order_id_key", "reservations.order_id"),
    attempts = 2,
    backoff = "10ms..20ms"
)]
async fn reserve(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    // This insert comes first, because any other error that a duplicate runs into would count as a failure.
    let reservation = reservation::ActiveModel {
        order_id: Set(event.order_id),
        units: Set(event.units),
        ..Default::default()
    };
    reservation.insert(&tx).await?;
    stock::Entity::update_many()
        .col_expr(
            stock::Column::Units,
            Expr::col(stock::Column::Units).sub(event.units),
        )
        .exec(&tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    let tables = db.get_schema_builder();
    let tables = tables.register(reservation::Entity).register(stock::Entity);
    tables.apply(&db).await?;
    let chai = stock::ActiveModel {
        product: Set("chai".to_owned()),
        units: Set(10),
    };
    chai.insert(&db).await?;

    let tx = db.begin().await?;
    record(
        &tx,
        [(1, 3), (2, 50), (3, 4)].map(|(order_id, units)| OrderPlaced { order_id, units }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;

    // Orders 1 and 3 are delivered twice. Order 2 asks for more than there is, which violates another constraint.
    broker.duplicate_deliveries(usize::MAX);
    let inbox = Inbox::new(db.clone(), broker.subscriber());
    let report = inbox.drain().await?;
    println!("handled {}, dead letters {}", report.handled, report.dead_letters);
    for letter in dead_letters(&db, "inventory").await? {
        println!(
            "order {}: {} attempts",
            letter.aggregate.map_or_else(String::new, |order| order.id),
            letter.attempts
        );
    }
    println!("reservations: {}", reservation::Entity::find().count(&db).await?);
    let left = stock::Entity::find_by_id("chai").one(&db).await?;
    println!("units left: {}", left.map_or(0, |chai| chai.units));
    let rows = handled(&db, "inventory").await?;
    println!("inbox rows of repeated deliveries: {}", rows.len());
    Ok(())
}

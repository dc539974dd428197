//! `cargo run -p examples --example 06_strategies`
//!
//! Four strategies that detect an already applied message, in addition to the default (the message
//! id). Every message is delivered twice, and two systems report the same deposit. No server is
//! needed.

use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ExprTrait as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

/// The effects of two consumers. The table has no unique key, so a second effect is visible.
mod booking {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "bookings")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub consumer: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod receipt {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "receipts")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        #[sea_orm(unique)]
        pub request: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

mod balance {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "balances")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub account: u32,
        pub cents: i64,
        pub version: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "deposited")]
struct Deposited {
    #[domain_event(aggregate_id)]
    account: u32,
    request: String,
    balance: i64,
}

async fn book(tx: &Tx<'_>, consumer: &str) -> Result<(), HandlerError> {
    let booking = booking::ActiveModel {
        consumer: Set(consumer.to_owned()),
        ..Default::default()
    };
    booking.insert(tx).await?;
    Ok(())
}

/// `sequence`: one row per aggregate, with the sequence of the last applied message. Duplicates are
/// detected without a time limit, and the order of an aggregate holds across all processes. A
/// message after a gap waits for 2 min.
#[idempotent_handler(consumer = "ledger", strategy = sequence(gap = "2m"))]
async fn count(_event: Event<Deposited>, tx: Tx<'_>) -> Result<(), HandlerError> {
    book(&tx, "ledger").await
}

/// `key`: the old and the new system both send a message for one request, and only the first is
/// applied. For a key of several fields, pass a function: `key(Deposited::bank_and_request)`.
#[idempotent_handler(consumer = "thanks", strategy = key(request))]
async fn thank(_event: Event<Deposited>, tx: Tx<'_>) -> Result<(), HandlerError> {
    book(&tx, "thanks").await
}

/// `constraint`: a violation of the handler's own unique key shows that the message was already
/// applied. SQLite reports the key's columns, other databases its name. On MySQL and MariaDB every
/// primary key has the name `PRIMARY`, so give the table a unique key. The handler inserts the
/// receipt first, because a violation of any other key is a failure.
#[idempotent_handler(
    consumer = "receipts",
    strategy = constraint("receipts_request_key", "receipts.request")
)]
async fn confirm(event: Event<Deposited>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let receipt = receipt::ActiveModel {
        request: Set(event.request.clone()),
        ..Default::default()
    };
    receipt.insert(&tx).await?;
    Ok(())
}

/// `natural`: the handler may run any number of times, and the inbox records only failures. The
/// event has the new balance instead of the difference, and a late copy finds a higher version in
/// the table.
#[idempotent_handler(consumer = "balances", strategy = natural)]
async fn project(event: Event<Deposited>, metadata: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    let version = i64::try_from(metadata.sequence().unwrap_or_default()).map_err(HandlerError::fatal)?;
    let row = balance::ActiveModel {
        account: Set(event.account),
        cents: Set(event.balance),
        version: Set(version),
    };
    let newer = OnConflict::column(balance::Column::Account)
        .update_columns([balance::Column::Cents, balance::Column::Version])
        .action_and_where(Expr::col((balance::Entity, balance::Column::Version)).lt(version))
        .to_owned();
    balance::Entity::insert(row)
        .on_conflict(newer)
        .exec_without_returning(&tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    let tables = db.get_schema_builder().register(booking::Entity);
    let tables = tables.register(receipt::Entity).register(balance::Entity);
    tables.apply(&db).await?;

    let tx = db.begin().await?;
    let deposits = [("r-1", 500), ("r-2", 700), ("r-2", 700)];
    record(
        &tx,
        deposits.map(|(request, balance)| Deposited {
            account: 7,
            request: request.to_owned(),
            balance,
        }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;
    broker.duplicate_deliveries(usize::MAX);
    Inbox::new(db.clone(), broker.subscriber()).drain().await?;

    for consumer in ["ledger", "thanks"] {
        let booked = booking::Entity::find().filter(booking::Column::Consumer.eq(consumer));
        println!("{consumer}: {} effects", booked.count(&db).await?);
    }
    println!("receipts: {} effects", receipt::Entity::find().count(&db).await?);
    for balance in balance::Entity::find().all(&db).await? {
        println!("balances: {} after version {}", balance.cents, balance.version);
    }
    Ok(())
}

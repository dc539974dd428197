//! `cargo run -p examples --example 17_own_transaction`
//!
//! A change that reads before it writes: lock the row, decide, save with events, commit. After a
//! commit with unknown outcome, a deduplication key makes a retry safe. No server is needed.
//! (SQLite has one writer at a time, so `lock_exclusive` has no effect there.)

use anyhow::Context as _;
use outbox::prelude::*;
use outbox::sea_orm::ErrorKind;
use outbox::testing::{TestDatabase, recorded_events};
use sea_orm::entity::prelude::*;
use sea_orm::{IntoActiveModel as _, QuerySelect as _, Set};
use serde::{Deserialize, Serialize};

mod account {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "accounts")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: i32,
        pub cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "withdrawn")]
struct MoneyWithdrawn {
    #[domain_event(aggregate_id)]
    account: i32,
    cents: i64,
    /// The caller chooses the key and repeats it at each try. The key includes the event's name,
    /// because all event types share one set of keys.
    #[domain_event(dedup_key)]
    request: String,
}

async fn withdraw(db: &OutboxConnection, id: i32, cents: i64, request: &str) -> anyhow::Result<&'static str> {
    // The transaction uses the table names of `db`, and its commit wakes the relays of this
    // process. After a deadlock, `transaction` calls the closure again.
    db.transaction(async |tx| {
        let account = account::Entity::find_by_id(id)
            .lock_exclusive()
            .one(&tx)
            .await?
            .context("there is no such account")?;
        let left = account.cents - cents;
        if left < 0 {
            return Ok("not enough money");
        }
        let withdrawn = MoneyWithdrawn {
            account: id,
            cents,
            request: format!("account.withdrawn/{request}"),
        };
        let mut account = account.into_active_model();
        account.cents = Set(left);
        match account.update_with_events(&tx, |_| [withdrawn]).await {
            Ok(_) => Ok("done"),
            // An earlier try has committed, so this try stores nothing.
            Err(error) if error.kind() == ErrorKind::AlreadyRecorded => Ok("done before"),
            Err(error) => Err(error.into()),
        }
    })
    .await
    // After `SaveError::CommitUnknown` the outcome is unknown. Call again with the same `request`.
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let pool = database.connect().await?;
    pool.get_schema_builder()
        .register(account::Entity)
        .apply(&pool)
        .await?;
    let account = account::ActiveModel {
        id: Set(7),
        cents: Set(100),
    };
    account.insert(&pool).await?;

    let db = OutboxConnection::new(pool, OutboxConfig::default());
    for (request, cents) in [("r-1", 30), ("r-1", 30), ("r-2", 90)] {
        println!(
            "{request}, {cents} cents: {}",
            withdraw(&db, 7, cents, request).await?
        );
    }
    let events = recorded_events::<MoneyWithdrawn>(&db).await?;
    println!("events recorded: {}", events.len());
    Ok(())
}

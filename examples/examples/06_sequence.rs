//! `cargo run -p examples --example 06_sequence`
//!
//! Strategy `sequence`: the consumer keeps one row per aggregate, with the number of the last event that took effect. So duplicates are known
//! for ever, also when a stream is replayed from its beginning, and the order of an aggregate holds across all processes of the consumer. The
//! price: nothing of an aggregate goes on while one of its messages is missing or fails. No server is needed.

use std::sync::atomic::{AtomicBool, Ordering};

use outbox::core::{EventError, Message, NewMessage};
use outbox::prelude::*;
use outbox::testing::{Harness, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{ExprTrait as _, Set, Statement};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

mod balance {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "balances")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub account: u32,
        pub cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "moved")]
struct MoneyMoved {
    #[domain_event(aggregate_id)]
    account: u32,
    cents: i64,
}

/// Whether the ledger is open. A closed ledger refuses, as a service that is down does.
struct Ledger {
    open: AtomicBool,
}

impl Ledger {
    fn new(open: bool) -> Self {
        let open = AtomicBool::new(open);
        Self { open }
    }
}

/// A message after a gap waits for 2 min (longer than `ack_wait`); then the gap is reported and the message takes effect. A missing message that arrives
/// after that becomes a dead letter.
#[idempotent_handler(consumer = "balances", strategy = sequence(gap = "2m"))]
async fn book(
    event: Event<MoneyMoved>,
    tx: Tx<'_>,
    ledger: HandlerState<Ledger>,
) -> Result<(), HandlerError> {
    if !ledger.open.load(Ordering::SeqCst) {
        return Err(HandlerError::retry("the ledger is closed"));
    }
    balance::Entity::update_many()
        .col_expr(
            balance::Column::Cents,
            Expr::col(balance::Column::Cents).add(event.cents),
        )
        .filter(balance::Column::Account.eq(event.account))
        .exec(&tx)
        .await?;
    Ok(())
}

/// The message as a relay sends it. The outbox numbers the events of an aggregate 1, 2, 3 … without holes.
fn moved(sequence: u64, cents: i64) -> Result<Message, EventError> {
    let event = MoneyMoved { account: 7, cents };
    Ok(NewMessage::from_event(&event)?.into_message(Some(sequence), OffsetDateTime::now_utc()))
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("warn")
        .with_writer(std::io::stderr)
        .init();
    let database = TestDatabase::create().await?;
    let db = database.connect().await?;
    db.get_schema_builder()
        .register(balance::Entity)
        .apply(&db)
        .await?;
    let empty = balance::ActiveModel {
        account: Set(7),
        cents: Set(0),
    };
    empty.insert(&db).await?;

    // The harness stands for the broker. Here it delivers out of order, as a broker does when a process that held one of the messages has crashed.
    let closed = Harness::new(db.clone()).with_state(Ledger::new(false));
    let open = Harness::new(db.clone()).with_state(Ledger::new(true));
    let (one, two, three) = (moved(1, 500)?, moved(2, -200)?, moved(3, 40)?);
    for (what, harness, message) in [
        ("1", &open, &one),
        ("3, too early", &open, &three),
        ("2, ledger closed", &closed, &two),
        ("3, 2 is tried again", &open, &three),
        ("2, again", &open, &two),
        ("3, again", &open, &three),
        ("3, a copy", &open, &three),
        ("1, replayed", &open, &one),
    ] {
        let outcome = harness.deliver_message::<book>(message).await?;
        println!("{what:<20} {outcome:?}");
    }
    let balance = balance::Entity::find_by_id(7u32).one(&db).await?;
    println!("balance: {}", balance.map_or(0, |balance| balance.cents));
    println!("rows that remember it: {}", rows_of_inbox(&db).await?);
    Ok(())
}

async fn rows_of_inbox(db: &DatabaseConnection) -> Result<i64, DbErr> {
    let sql = "SELECT count(*) AS n FROM inbox_sequences";
    let row = db
        .query_one_raw(Statement::from_string(db.get_database_backend(), sql))
        .await?;
    row.map_or(Ok(0), |row| row.try_get("", "n"))
}

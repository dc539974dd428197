//! `cargo run -p examples --example 13_dead_letters`
//!
//! A message that no attempt can handle becomes a dead letter, stored with its bytes and the error.
//! Its aggregate continues. Operators inspect dead letters, fix the cause, and retry or discard. No
//! server is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox::core::{Aggregate, SensitiveFields};
use outbox::inbox::{DeadLetterSelection, DeadLetters};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};

mod invoice {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "bills")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub order_id: u32,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u32,
    product: String,
    /// The customer is masked in output for people. Handlers and retries receive the original
    /// value.
    #[domain_event(sensitive)]
    email: String,
}

#[derive(Clone, Default)]
struct PriceList {
    complete: Arc<AtomicBool>,
}

#[idempotent_handler(consumer = "billing", attempts = 3, backoff = "10ms..20ms")]
async fn bill(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    prices: HandlerState<PriceList>,
) -> Result<(), HandlerError> {
    if event.product == "caviar" && !prices.complete.load(Ordering::SeqCst) {
        // `retry`: another attempt may succeed. `?` returns errors of this kind too.
        return Err(HandlerError::retry("caviar has no price"));
    }
    if event.product == "unicorn" {
        // `fatal`: no attempt can succeed, so the message becomes a dead letter at once.
        return Err(HandlerError::fatal("unicorns are not sold"));
    }
    let invoice = invoice::ActiveModel {
        order_id: Set(event.order_id),
        ..Default::default()
    };
    invoice.insert(&tx).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder()
        .register(invoice::Entity)
        .apply(&db)
        .await?;

    let tx = db.begin().await?;
    let orders = [(1, "caviar"), (1, "chai"), (1, "unicorn")];
    record(
        &tx,
        orders.map(|(order_id, product)| OrderPlaced {
            order_id,
            product: product.to_owned(),
            email: "ada@example.org".to_owned(),
        }),
    )
    .await?;
    tx.commit().await?;
    let broker = MemoryBroker::new();
    Relay::new(SqlStore::new(relay_db), broker.publisher())
        .drain()
        .await?;

    // While caviar is retried, chai waits: the order of an aggregate's events is kept. After caviar
    // becomes a dead letter, chai continues.
    let (prices, shutdown) = (PriceList::default(), CancellationToken::new());
    let handled = shutdown.clone();
    let inbox = Inbox::new(db.clone(), broker.subscriber())
        .with_state(prices.clone())
        .on_dead_letter(|lost| println!("dead letter after {} attempts: {}", lost.attempts, lost.error))
        .on_handled(move |done| {
            println!("billed number {}", done.message.sequence.unwrap_or_default());
            if done.message.sequence == Some(1) {
                handled.cancel();
            }
        });
    inbox.drain().await?;

    // An operator can use `DeadLetters` in any process with access to the database.
    let letters = DeadLetters::new(db);
    let of_order = DeadLetterSelection::consumer("billing").aggregate(Aggregate::new("order", "1"));
    let open = letters.list(&of_order, 10).await?;
    let fields = SensitiveFields::linked();
    for letter in &open {
        println!("{} {}", letter.consumer, letter.masked_payload(&fields));
    }
    let unicorn = open.iter().find(|letter| letter.error.contains("unicorn"));
    let unicorn = DeadLetterSelection::ids(unicorn.map(|letter| letter.id));
    println!("discarded {}", letters.discard(&unicorn).await?);

    // The cause is fixed, and the dead letter is marked. A running inbox retries it within 5 s; a
    // starting inbox retries it at once.
    prices.complete.store(true, Ordering::SeqCst);
    println!("marked for retry: {}", letters.retry(&of_order).await?);
    inbox.run(shutdown).await?;
    println!("left: {}", letters.count(&DeadLetterSelection::all()).await?);
    Ok(())
}

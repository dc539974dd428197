//! `cargo run -p examples --example 19_saga`
//!
//! A saga: an order that other services pay and ship. A row holds the current step. Each answer
//! changes the step and records the request of the next step in the same transaction. A delayed
//! event is the deadline of a step: if the deadline arrives before the answer, the saga refunds the
//! payment. No server is needed.

use std::time::Duration;

use outbox::core::{Events, NewMessage};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, TestDatabase};
use sea_orm::entity::prelude::*;
use sea_orm::{IntoActiveModel as _, QueryOrder as _, QuerySelect as _, Set, TransactionTrait as _};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

mod saga {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq, EnumIter, DeriveActiveEnum)]
    #[sea_orm(rs_type = "String", db_type = "String(StringLen::N(16))")]
    pub enum Step {
        #[sea_orm(string_value = "paying")]
        Paying,
        #[sea_orm(string_value = "shipping")]
        Shipping,
        #[sea_orm(string_value = "refunding")]
        Refunding,
        #[sea_orm(string_value = "shipped")]
        Shipped,
        #[sea_orm(string_value = "cancelled")]
        Cancelled,
    }

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "order_sagas")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub order_id: i32,
        pub product: String,
        pub cents: i64,
        pub step: Step,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

use saga::Step;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
    cents: i64,
}

/// Requests to the payment service. `tag`: the variants have the same fields.
#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "payment")]
#[serde(tag = "kind")]
enum PaymentRequest {
    #[domain_event(name = "requested")]
    Charge {
        #[domain_event(aggregate_id)]
        order_id: i32,
        cents: i64,
    },
    #[domain_event(name = "refund_requested")]
    Refund {
        #[domain_event(aggregate_id)]
        order_id: i32,
        cents: i64,
    },
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "payment")]
#[serde(tag = "kind")]
enum PaymentAnswer {
    #[domain_event(name = "received")]
    Received {
        #[domain_event(aggregate_id)]
        order_id: i32,
    },
    #[domain_event(name = "refunded")]
    Refunded {
        #[domain_event(aggregate_id)]
        order_id: i32,
    },
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "requested")]
struct ShipmentRequested {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "dispatched")]
struct ShipmentDispatched {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

/// The deadline of a step. The event is recorded with a delay, and is `unsequenced`, so that it
/// does not delay other messages of the shipment.
#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "overdue", unsequenced)]
struct ShipmentOverdue {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

/// Locks the saga: two of its events belong to different aggregates, so they may be handled
/// concurrently.
async fn locked(tx: &Tx<'_>, order_id: i32) -> Result<saga::Model, HandlerError> {
    let saga = saga::Entity::find_by_id(order_id).lock_exclusive();
    let saga = saga.one(tx).await?;
    saga.ok_or_else(|| HandlerError::fatal(format!("order {order_id} has no saga")))
}

async fn move_to(tx: &Tx<'_>, saga: saga::Model, step: Step) -> Result<(), HandlerError> {
    let mut saga = saga.into_active_model();
    saga.step = Set(step);
    saga.update(tx).await?;
    Ok(())
}

fn patience(product: &str) -> Duration {
    match product {
        "ice" => Duration::from_millis(50),
        _ => Duration::from_secs(24 * 3600),
    }
}

#[idempotent_handler(consumer = "fulfilment")]
async fn begin(event: Event<OrderPlaced>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    let (order_id, cents) = (event.order_id, event.cents);
    let saga = saga::ActiveModel {
        order_id: Set(order_id),
        product: Set(event.product.clone()),
        cents: Set(cents),
        step: Set(Step::Paying),
    };
    saga.insert(&tx).await?;
    outbox
        .record([PaymentRequest::Charge { order_id, cents }])
        .await?;
    Ok(())
}

/// An unexpected answer changes nothing.
#[idempotent_handler(consumer = "fulfilment")]
async fn payment_answered(
    event: Event<PaymentAnswer>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
) -> Result<(), HandlerError> {
    let (PaymentAnswer::Received { order_id } | PaymentAnswer::Refunded { order_id }) = *event;
    let saga = locked(&tx, order_id).await?;
    match (&*event, saga.step) {
        (PaymentAnswer::Received { .. }, Step::Paying) => {
            let product = saga.product.clone();
            let due = OffsetDateTime::now_utc() + patience(&product);
            let deadline = NewMessage::from_event(&ShipmentOverdue { order_id })?.available_at(due);
            let request = ShipmentRequested { order_id, product };
            move_to(&tx, saga, Step::Shipping).await?;
            outbox.record(Events::new().with(request).with(deadline)).await?;
        }
        (PaymentAnswer::Refunded { .. }, Step::Refunding) => move_to(&tx, saga, Step::Cancelled).await?,
        _ => {}
    }
    Ok(())
}

#[idempotent_handler(consumer = "fulfilment")]
async fn dispatched(event: Event<ShipmentDispatched>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let saga = locked(&tx, event.order_id).await?;
    if saga.step == Step::Shipping {
        move_to(&tx, saga, Step::Shipped).await?;
    }
    Ok(())
}

/// Handles the deadline. If the deadline arrives before the answer, the saga refunds the payment:
/// this is the compensation.
#[idempotent_handler(consumer = "fulfilment")]
async fn overdue(event: Event<ShipmentOverdue>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    let (order_id, saga) = (event.order_id, locked(&tx, event.order_id).await?);
    if saga.step == Step::Shipping {
        let cents = saga.cents;
        move_to(&tx, saga, Step::Refunding).await?;
        outbox
            .record([PaymentRequest::Refund { order_id, cents }])
            .await?;
    }
    Ok(())
}

/// Simulates the payment service.
#[idempotent_handler(consumer = "payments")]
async fn pay(event: Event<PaymentRequest>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    let answer = match *event {
        PaymentRequest::Charge { order_id, .. } => PaymentAnswer::Received { order_id },
        PaymentRequest::Refund { order_id, .. } => PaymentAnswer::Refunded { order_id },
    };
    outbox.record([answer]).await?;
    Ok(())
}

/// Simulates the shipping service, which has no ice and never answers for ice.
#[idempotent_handler(consumer = "shipments")]
async fn ship(event: Event<ShipmentRequested>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    let order_id = event.order_id;
    if event.product != "ice" {
        outbox.record([ShipmentDispatched { order_id }]).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    let database = TestDatabase::create().await?;
    let (db, relay_db) = (database.connect().await?, database.connect().await?);
    db.get_schema_builder().register(saga::Entity).apply(&db).await?;
    // The default retention of a stream, so that the inbox logs no warning.
    let broker = MemoryBroker::new().with_retention(Some(Duration::from_secs(14 * 24 * 3600)));
    let relay = Relay::new(SqlStore::new(relay_db), broker.publisher());
    let inbox = Inbox::new(db.clone(), broker.subscriber());

    // A service saves the order with this event.
    let tx = db.begin().await?;
    for (order_id, product) in [(1, "chai"), (2, "ice")] {
        let (product, cents) = (product.to_owned(), 1_000);
        let placed = OrderPlaced {
            order_id,
            product,
            cents,
        };
        record(&tx, [placed]).await?;
    }
    tx.commit().await?;

    // Publishes and handles events until every saga has ended. One saga waits for its deadline. A
    // service uses a `Runner` for relay and inbox.
    let open = saga::Entity::find().filter(saga::Column::Step.is_not_in([Step::Shipped, Step::Cancelled]));
    loop {
        let published = relay.drain().await?.published;
        inbox.drain().await?;
        if published == 0 && open.clone().one(&db).await?.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sagas = saga::Entity::find().order_by_asc(saga::Column::OrderId);
    for saga in sagas.all(&db).await? {
        println!("order {}: {:?}", saga.order_id, saga.step);
    }
    Ok(())
}

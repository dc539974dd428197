//! Written options are used, and omitted options keep their defaults.

use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{DomainEvent, NewMessage};
use outbox_inbox::{Emit, Event, Handler, HandlerError, HandlerOptions, Order, Strategy, idempotent_handler};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
    r#type: String,
}

impl OrderPlaced {
    fn number(&self) -> &str {
        &self.r#type
    }
}

fn number_and_type(event: &OrderPlaced) -> impl std::fmt::Display {
    format!("{}/{}", event.order_id, event.r#type)
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "cancelled")]
struct OrderCancelled(#[domain_event(aggregate_id)] u64);

type Outcome = Result<(), HandlerError>;

#[idempotent_handler(consumer = "plain")]
async fn plain(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

#[idempotent_handler(
    consumer = "all",
    strategy = message_id,
    order = strict,
    batch = 7,
    attempts = 5,
    backoff = "250ms..1h",
    timeout = "5m",
)]
async fn all(_event: Event<OrderPlaced>) -> Result<Emit<[OrderCancelled; 1]>, HandlerError> {
    Ok(Emit([OrderCancelled(7)]))
}

#[idempotent_handler(consumer = "several", strategy = sequence(gap = "0s"), order = aggregate)]
async fn several(_events: Vec<Event<OrderPlaced>>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "patient", strategy = sequence)]
async fn patient(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "loose", strategy = natural, order = none)]
async fn loose(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "unique", strategy = constraint("reservations_pkey", "PRIMARY",))]
async fn unique(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "elsewhere", strategy = external)]
async fn elsewhere(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "field", strategy = key(r#type))]
async fn field(_event: Event<OrderPlaced>) -> Result<Emit<[OrderCancelled; 1]>, HandlerError> {
    Ok(Emit([OrderCancelled(7)]))
}

#[idempotent_handler(consumer = "index", strategy = key(0))]
async fn index(_event: Event<OrderCancelled>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "method", strategy = key(OrderPlaced::number))]
async fn method(_events: Vec<Event<OrderPlaced>>) -> Outcome {
    Ok(())
}

#[idempotent_handler(consumer = "function", strategy = key(self::number_and_type))]
async fn function(_event: Event<OrderPlaced>) -> Outcome {
    Ok(())
}

fn options<H: Handler>() -> HandlerOptions {
    H::REGISTRATION.options
}

fn key_of<H: Handler>(event: &impl DomainEvent) -> String {
    let message = NewMessage::from_event(event).expect("can be recorded");
    let message = message.into_message(Some(1), OffsetDateTime::UNIX_EPOCH);
    match options::<H>().strategy {
        Strategy::Key(key) => key(&message).expect("has a key"),
        other => panic!("{other:?}"),
    }
}

fn main() {
    assert_eq!(
        format!("{:?}", options::<plain>()),
        format!("{:?}", HandlerOptions::new())
    );

    let all = options::<all>();
    assert!(matches!(all.strategy, Strategy::MessageId));
    assert_eq!(all.order, Order::Strict);
    assert_eq!((all.batch, all.attempts_max), (Some(7), Some(5)));
    let backoff = Backoff {
        min: Duration::from_millis(250),
        max: Duration::from_secs(3600),
    };
    assert_eq!(
        (all.backoff, all.timeout),
        (Some(backoff), Some(Duration::from_secs(300)))
    );

    let several = options::<several>();
    assert!(matches!(
        several.strategy,
        Strategy::Sequence {
            gap: Some(Duration::ZERO)
        }
    ));
    assert_eq!(several.order, Order::Aggregate);
    assert_eq!(
        [several::REGISTRATION, plain::REGISTRATION].map(|one| one.shape.several),
        [true, false]
    );

    assert!(matches!(
        options::<patient>().strategy,
        Strategy::Sequence { gap: None }
    ));
    assert!(matches!(options::<loose>().strategy, Strategy::Natural));
    assert_eq!(options::<loose>().order, Order::None);
    assert!(matches!(
        options::<unique>().strategy,
        Strategy::Constraint(["reservations_pkey", "PRIMARY"])
    ));
    assert!(matches!(options::<elsewhere>().strategy, Strategy::External));

    let event = OrderPlaced {
        order_id: 7,
        r#type: "web".to_owned(),
    };
    assert_eq!(key_of::<field>(&event), "web");
    assert_eq!(key_of::<index>(&OrderCancelled(7)), "7");
    assert_eq!(key_of::<method>(&event), "web");
    assert_eq!(key_of::<function>(&event), "7/web");
}

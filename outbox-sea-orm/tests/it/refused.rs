//! Everything that can be wrong with an event is a typed error of the save, on every database, and leaves neither model nor event.

use std::collections::BTreeMap;

use outbox_core::{
    DomainEvent, EventError, Events, HeaderError, IntoMessage, Limits, MessageContext, NewMessage,
};
use outbox_sea_orm::{RecordError, SaveError, SaveWithEvents};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderPlaced, Shop};
use crate::support::TestDb;

on_every_backend!(a_bad_event_is_refused_with_its_model,);

/// JSON has no such keys.
#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "mapped")]
struct OrderMapped {
    #[domain_event(aggregate_id)]
    order_id: i32,
    positions: BTreeMap<(u8, u8), u8>,
}

async fn a_bad_event_is_refused_with_its_model(db: TestDb) {
    let shop = Shop::open(db).await;
    let greeted = |customer: &str, greeting: &str| CustomerGreeted {
        customer: customer.to_owned(),
        greeting: greeting.to_owned(),
    };
    for (customer, greeting, wrong) in [
        ("", "hello", "aggregate id"),
        ("a\0b", "hello", "aggregate id"),
        (&"x".repeat(256), "hello", "aggregate id"),
        ("a", "", "deduplication key"),
        ("a", "hel\0lo", "deduplication key"),
        ("a", &"ü".repeat(256), "deduplication key"),
    ] {
        let error = refused(&shop, greeted(customer, greeting)).await;
        assert!(
            matches!(&error, EventError::Key { what, .. } if *what == wrong),
            "{error:?}"
        );
    }

    let positions = BTreeMap::from([((1, 2), 3)]);
    let error = refused(
        &shop,
        OrderMapped {
            order_id: 1,
            positions,
        },
    )
    .await;
    assert!(
        matches!(&error, EventError::Encode { event_type, .. } if event_type == "order.mapped"),
        "{error:?}"
    );

    let heavy = NewMessage::from_event(&placed())
        .unwrap()
        .with_header("tenant", "x".repeat(Limits::default().headers_bytes_max))
        .unwrap();
    let error = refused(&shop, heavy).await;
    assert!(
        matches!(&error, EventError::TooLarge { what: "headers", .. }),
        "{error:?}"
    );

    for id in ["a\r\nNats-Msg-Id: 1", "a\nb", "a\0"] {
        let context = MessageContext {
            correlation_id: Some(id.to_owned()),
            ..MessageContext::default()
        };
        // Events are encoded where they are given to the save: inside of the scope.
        let error = context.scope(refused(&shop, placed())).await;
        assert!(
            matches!(&error, EventError::Header(HeaderError::Value { name }) if name == "ce-correlationid"),
            "{error:?}"
        );
    }

    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.recorded().await, []);
}

fn placed() -> OrderPlaced {
    OrderPlaced {
        order_id: 1,
        total_cents: 1,
    }
}

/// Saves an order with a good event and this one, over a pool.
async fn refused(shop: &Shop, event: impl IntoMessage) -> EventError {
    let events = Events::new().with(placed()).with(event);
    match shop
        .order(1)
        .insert_with_events(&shop.test.outbox(), |_| events)
        .await
    {
        Err(SaveError::Record(RecordError::Event(error))) => error,
        other => panic!("{other:?}"),
    }
}

//! A rejected event returns a typed error. Neither model nor event is stored.

use std::collections::BTreeMap;

use outbox_core::{
    DomainEvent, EventError, Events, HeaderError, IntoMessage, Limits, MessageContext, NewMessage,
};
use outbox_sea_orm::{OutboxConnection, RecordError, SaveError, SaveWithEvents};
use sea_orm::DbBackend;

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderDescribed, Shop, placed};
use crate::support::TestDb;

on_every_backend!(
    a_bad_event_is_refused_with_its_model,
    oversized_message_is_not_an_outage,
);

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

    let heavy = NewMessage::from_event(&placed(1))
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
        let error = context.scope(refused(&shop, placed(1))).await;
        assert!(
            matches!(&error, EventError::Header(HeaderError::Value { name }) if name == "ce-correlationid"),
            "{error:?}"
        );
    }

    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.recorded().await, []);
}

/// If a message exceeds `max_allowed_packet` (16 MiB here), the server closes the connection, as in
/// an outage.
async fn oversized_message_is_not_an_outage(db: TestDb) {
    const MIB: usize = 1024 * 1024;
    let shop = Shop::open(db).await;
    let mut limits = Limits::default();
    limits.payload_bytes_max = 32 * MIB;
    let outbox = OutboxConnection::new(shop.test.db.clone(), shop.test.config().with_limits(limits));
    let described = |bytes| OrderDescribed {
        order_id: 1,
        text: "x".repeat(bytes),
    };
    let is_bounded = shop.test.sql_backend() == DbBackend::MySql;

    let many: Vec<OrderDescribed> = (0..18).map(|_| described(MIB)).collect();
    shop.order(1).insert_with_events(&outbox, |_| many).await.unwrap();

    let large = shop
        .order(2)
        .insert_with_events(&outbox, move |_| [described(17 * MIB)])
        .await;
    let tx = outbox.begin().await.unwrap();
    shop.order(3)
        .insert_with_events(&tx, |_| [placed(1)])
        .await
        .unwrap();
    let joined = shop
        .order(4)
        .insert_with_events(&tx, move |_| [described(17 * MIB)])
        .await;
    tx.commit().await.unwrap();
    for outcome in [large, joined] {
        match outcome {
            Ok(_) => assert!(!is_bounded),
            Err(SaveError::Record(RecordError::TooLarge {
                event_type,
                size_bytes,
                limit_bytes,
            })) => {
                assert!(is_bounded);
                assert_eq!(event_type, "order.described");
                assert!(
                    size_bytes > limit_bytes && limit_bytes > 15 * MIB,
                    "{limit_bytes}"
                );
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let saved = if is_bounded { 2 } else { 4 };
    assert_eq!(shop.orders().await, saved);
    assert_eq!(shop.recorded().await.len() as i64, 17 + saved);
}

async fn refused(shop: &Shop, event: impl IntoMessage) -> EventError {
    let events = Events::new().with(placed(1)).with(event);
    match shop
        .order(1)
        .insert_with_events(&shop.test.outbox(), |_| events)
        .await
    {
        Err(SaveError::Record(RecordError::Event(error))) => error,
        other => panic!("{other:?}"),
    }
}

//! Saving a model together with its events.

use outbox_core::{Events, MessageContext, wake};
use outbox_sea_orm::{SaveError, SaveWithEvents};
use sea_orm::{IntoActiveModel, Set};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderPlaced, Shop, context, placed};
use crate::support::TestDb;

on_every_backend!(
    a_generated_key_reaches_the_event,
    all_forms_of_events_are_recorded_in_order,
    updates_and_deletes_are_recorded_only_if_they_happened,
    ambient_ids_travel_with_the_event,
    a_commit_wakes_the_relay,
);

async fn a_generated_key_reaches_the_event(db: TestDb) {
    let shop = Shop::open(db).await;
    let saved = shop
        .order(1999)
        .insert_with_events(&shop.test.outbox(), |order| {
            [OrderPlaced {
                order_id: order.id,
                total_cents: order.total_cents,
            }]
        })
        .await
        .unwrap();
    let rows = shop.test.fetch_all().await;
    let message = rows[0].message.as_ref().unwrap();
    assert_eq!(message.aggregate.id, saved.id.to_string());
    assert_eq!(
        (
            message.event_type.as_str(),
            message.event_version,
            message.sequence
        ),
        ("order.placed", 2, Some(1))
    );
    let event: OrderPlaced = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(
        event,
        OrderPlaced {
            order_id: saved.id,
            total_cents: 1999
        }
    );
}

async fn all_forms_of_events_are_recorded_in_order(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    shop.order(1)
        .insert_with_events(&outbox, |_| [placed(1), placed(1)])
        .await
        .unwrap();
    shop.order(2)
        .insert_with_events(&outbox, |_| vec![placed(1)])
        .await
        .unwrap();
    shop.order(3)
        .insert_with_events(&outbox, |_| Some(placed(2)))
        .await
        .unwrap();
    let mixed = Events::new()
        .with(CustomerGreeted {
            customer: "c".to_owned(),
            greeting: "hello".to_owned(),
        })
        .with(placed(2));
    let saved = shop
        .order(4)
        .insert_with_events(&outbox, |_| mixed)
        .await
        .unwrap();
    shop.order(5)
        .insert_with_events(&outbox, |_| None::<OrderPlaced>)
        .await
        .unwrap();

    let tx = outbox.begin().await.unwrap();
    let mut changed = saved.into_active_model();
    changed.total_cents = Set(5);
    let changed = changed
        .save_with_events(&tx, |order| (order.total_cents == 5).then(|| placed(1)))
        .await
        .unwrap();
    assert_eq!(changed.total_cents, 5);
    shop.order(6)
        .save_with_events(&tx, |_| [placed(2)])
        .await
        .unwrap();
    tx.commit().await.unwrap();

    assert_eq!(shop.orders().await, 6);
    let recorded: Vec<_> = shop.recorded().await;
    let expected = [
        ("order.placed", 1),
        ("order.placed", 2),
        ("order.placed", 3),
        ("order.placed", 1),
        ("customer.greeted", 1),
        ("order.placed", 2),
        ("order.placed", 4),
        ("order.placed", 3),
    ];
    assert_eq!(
        recorded,
        expected.map(|(event_type, sequence)| (event_type.to_owned(), Some(sequence)))
    );
}

async fn updates_and_deletes_are_recorded_only_if_they_happened(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    fn placed(total_cents: i64) -> OrderPlaced {
        OrderPlaced {
            order_id: 1,
            total_cents,
        }
    }
    let saved = shop
        .order(1)
        .insert_with_events(&outbox, |_| [placed(1)])
        .await
        .unwrap();

    let mut changed = saved.clone().into_active_model();
    changed.total_cents = Set(2);
    let changed = changed
        .update_with_events(&outbox, |_| [placed(2)])
        .await
        .unwrap();
    assert_eq!(changed.total_cents, 2);
    changed
        .into_active_model()
        .delete_with_events(&outbox, |order| [placed(order.total_cents.as_ref() + 1)])
        .await
        .unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 3));
    let rows = shop.test.fetch_all().await;
    let deleted: OrderPlaced = serde_json::from_slice(&rows[2].message.as_ref().unwrap().payload).unwrap();
    assert_eq!(deleted, placed(3), "the event is made from the deleted model");

    let mut gone = saved.clone().into_active_model();
    gone.total_cents = Set(4);
    let error = gone
        .update_with_events(&outbox, |_| [placed(4)])
        .await
        .unwrap_err();
    assert!(
        matches!(&error, SaveError::RowMissing { table } if table == "save_orders"),
        "{error:?}"
    );
    let error = saved
        .into_active_model()
        .delete_with_events(&outbox, |_| [placed(5)])
        .await
        .unwrap_err();
    assert!(
        matches!(&error, SaveError::RowMissing { table } if table == "save_orders"),
        "{error:?}"
    );
    assert_eq!(shop.recorded().await.len(), 3);
}

async fn ambient_ids_travel_with_the_event(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    context()
        .scope(async {
            let given = [placed(1)];
            shop.order(1)
                .insert_with_events(&outbox, |_| given)
                .await
                .unwrap();
            shop.order(2)
                .insert_with_events(&outbox, |order| [placed(order.id)])
                .await
                .unwrap();
            let tx = outbox.begin().await.unwrap();
            outbox_sea_orm::record(&tx, [placed(3)]).await.unwrap();
            tx.commit().await.unwrap();
        })
        .await;
    let save = shop.order(4).insert_with_events(&outbox, |_| [placed(4)]);
    context().scope(save).await.unwrap();
    let rows = shop.test.fetch_all().await;
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(
            MessageContext::from_headers(&row.message.unwrap().headers),
            context()
        );
    }
}

async fn a_commit_wakes_the_relay(db: TestDb) {
    let shop = Shop::open(db).await;
    let mut commits = wake::Listener::new();
    let events = [placed(1)];
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| events)
        .await
        .unwrap();
    commits.notified().await;
    let tx = shop.test.outbox().begin().await.unwrap();
    outbox_sea_orm::record(&tx, [placed(1)]).await.unwrap();
    tx.commit().await.unwrap();
    commits.notified().await;
}

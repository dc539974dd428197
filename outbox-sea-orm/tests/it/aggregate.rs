//! Events raised by domain methods.

use std::sync::Mutex;

use outbox_sea_orm::{AggregateRoot, SaveError};
use sea_orm::{IntoActiveModel, Set};

use crate::on_every_backend;
use crate::shop::{OrderPlaced, Shop, order};
use crate::support::TestDb;

on_every_backend!(
    raised_events_are_recorded_by_the_save,
    events_with_the_generated_key_use_the_saved_model,
);

fn reprice(order: &mut AggregateRoot<order::ActiveModel>, total_cents: i64) {
    let order_id = *order.id.as_ref();
    order.total_cents = Set(total_cents);
    order.raise(OrderPlaced {
        order_id,
        total_cents,
    });
}

async fn events_with_the_generated_key_use_the_saved_model(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let event = |order_id, total_cents| OrderPlaced {
        order_id,
        total_cents,
    };
    let mut root = AggregateRoot::new(shop.order(2));
    root.raise(event(0, 1));
    root.raise_with(move |order| [event(order.id, order.total_cents)]);
    root.raise(event(0, 3));
    let saved = root.insert(&outbox).await.unwrap();
    let rows = shop.test.fetch_all().await;
    let recorded: Vec<(String, OrderPlaced)> = rows
        .into_iter()
        .map(|row| row.message.unwrap())
        .map(|message| {
            (
                message.aggregate.id.clone(),
                serde_json::from_slice(&message.payload).unwrap(),
            )
        })
        .collect();
    let expected = [(0, 1), (saved.id, 2), (0, 3)];
    assert_eq!(
        recorded,
        expected.map(|(id, cents)| (id.to_string(), event(id, cents)))
    );

    let mut root = AggregateRoot::new(saved.into_active_model());
    root.raise_with(move |order| [event(order.id, 4)]);
    let error = root.delete(&outbox).await.unwrap_err();
    assert!(matches!(error, SaveError::Unsupported { .. }), "{error:?}");
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 3));
}

async fn raised_events_are_recorded_by_the_save(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let saved = AggregateRoot::new(shop.order(1)).insert(&outbox).await.unwrap();
    let mut root = AggregateRoot::new(saved.clone().into_active_model());
    reprice(&mut root, 2);
    reprice(&mut root, 3);
    assert_eq!(root.raised().len(), 2);
    assert_eq!(root.update(&outbox).await.unwrap().total_cents, 3);
    assert_eq!(shop.recorded().await.len(), 2);

    let mut root = AggregateRoot::new(saved.clone().into_active_model());
    reprice(&mut root, 4);
    assert_eq!(root.save(&outbox).await.unwrap().total_cents, 4);
    let mut root = AggregateRoot::new(saved.clone().into_active_model());
    reprice(&mut root, 5);
    root.delete(&outbox).await.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 4));

    let mut root = AggregateRoot::new(saved.into_active_model());
    reprice(&mut root, 6);
    let error = root.update(&outbox).await.unwrap_err();
    assert!(matches!(error, SaveError::RowMissing { .. }), "{error:?}");
    assert_eq!(shop.recorded().await.len(), 4);
}

fn logged(code: impl FnOnce()) -> String {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Mutex::new(log.reopen().unwrap()))
        .finish();
    tracing::subscriber::with_default(subscriber, code);
    std::fs::read_to_string(log.path()).unwrap()
}

fn raised() -> AggregateRoot<order::ActiveModel> {
    let mut root = AggregateRoot::new(order::ActiveModel {
        id: Set(7),
        ..Default::default()
    });
    root.raise(OrderPlaced {
        order_id: 7,
        total_cents: 1,
    });
    root
}

#[test]
fn dropped_unsaved_events_are_logged() {
    let log = logged(|| drop(raised()));
    assert!(
        log.contains("ERROR") && log.contains("order.placed of order/7"),
        "{log}"
    );
}

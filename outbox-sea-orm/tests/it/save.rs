//! Saving a model together with its events.

use outbox_core::{EventError, Events, Limits, MessageContext, NewMessage, wake};
use outbox_sea_orm::{OutboxConnection, RecordError, SaveError, SaveWithEvents};
use sea_orm::{ActiveModelTrait, IntoActiveModel, Set};

use crate::on_every_backend;
use crate::shop::{CustomerGreeted, OrderDescribed, OrderPlaced, Shop, context};
use crate::support::TestDb;

on_every_backend!(
    a_generated_key_reaches_the_event,
    all_forms_of_events_are_recorded_in_order,
    a_refused_event_leaves_no_model,
    a_refused_event_in_a_transaction_undoes_only_its_save,
    a_refused_model_leaves_no_event,
    a_rolled_back_transaction_leaves_nothing,
    updates_and_deletes_are_recorded_only_if_they_happened,
    saving_a_new_row_with_a_client_key_names_the_fix,
    repeated_business_key_is_refused_with_its_model,
    ambient_ids_travel_with_the_event,
    headers_and_delays_are_kept,
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
    fn placed(order_id: i32) -> OrderPlaced {
        OrderPlaced {
            order_id,
            total_cents: 1,
        }
    }
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

fn too_large() -> OrderDescribed {
    OrderDescribed {
        order_id: 1,
        text: "x".repeat(Limits::default().payload_bytes_max),
    }
}

async fn a_refused_event_leaves_no_model(db: TestDb) {
    let shop = Shop::open(db).await;
    let error = shop
        .order(1)
        .insert_with_events(&shop.test.outbox(), |_| [too_large()])
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error,
            SaveError::Record(RecordError::Event(EventError::TooLarge { .. }))
        ),
        "{error:?}"
    );
    let empty_id = CustomerGreeted {
        customer: String::new(),
        greeting: "x".to_owned(),
    };
    let error = shop
        .order(1)
        .insert_with_events(&shop.test.outbox(), |_| [empty_id])
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error,
            SaveError::Record(RecordError::Event(EventError::Key { .. }))
        ),
        "{error:?}"
    );
    let limits = shop
        .test
        .config()
        .with_limits(Limits::default().payload_bytes_max(3));
    let strict = OutboxConnection::new(shop.test.db.clone(), limits);
    let error = shop
        .order(1)
        .insert_with_events(&strict, |_| {
            [OrderPlaced {
                order_id: 1,
                total_cents: 1,
            }]
        })
        .await;
    assert!(matches!(
        error,
        Err(SaveError::Record(RecordError::Event(EventError::TooLarge { .. })))
    ));
    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.recorded().await, []);
}

async fn a_refused_event_in_a_transaction_undoes_only_its_save(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1)
        .insert_with_events(&tx, |_| {
            [OrderPlaced {
                order_id: 1,
                total_cents: 1,
            }]
        })
        .await
        .unwrap();
    shop.order(2)
        .insert_with_events(&tx, |_| [too_large()])
        .await
        .unwrap_err();
    shop.customer("a").insert(&*tx).await.unwrap();
    let twice = shop
        .customer("a")
        .insert_with_events(&tx, |_| {
            [OrderPlaced {
                order_id: 1,
                total_cents: 2,
            }]
        })
        .await;
    assert!(matches!(twice, Err(SaveError::Database(_))), "{twice:?}");
    tx.commit().await.unwrap();
    assert_eq!((shop.orders().await, shop.customers().await), (1, 1));
    assert_eq!(shop.recorded().await, [("order.placed".to_owned(), Some(1))]);
}

async fn a_refused_model_leaves_no_event(db: TestDb) {
    let shop = Shop::open(db).await;
    fn greeted(greeting: &str) -> CustomerGreeted {
        CustomerGreeted {
            customer: "a".to_owned(),
            greeting: greeting.to_owned(),
        }
    }
    shop.customer("a")
        .insert_with_events(&shop.test.outbox(), |_| [greeted("hello")])
        .await
        .unwrap();
    let error = shop
        .customer("a")
        .insert_with_events(&shop.test.outbox(), |_| [greeted("again")])
        .await
        .unwrap_err();
    assert!(matches!(error, SaveError::Database(_)), "{error:?}");
    assert_eq!(shop.recorded().await.len(), 1);
}

async fn a_rolled_back_transaction_leaves_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    fn placed() -> OrderPlaced {
        OrderPlaced {
            order_id: 1,
            total_cents: 1,
        }
    }
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1)
        .insert_with_events(&tx, |_| [placed()])
        .await
        .unwrap();
    outbox_sea_orm::record(&tx, [placed()]).await.unwrap();
    tx.rollback().await.unwrap();
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1)
        .insert_with_events(&tx, |_| [placed()])
        .await
        .unwrap();
    drop(tx);
    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.recorded().await, []);
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| [placed()])
        .await
        .unwrap();
    assert_eq!(shop.recorded().await, [("order.placed".to_owned(), Some(1))]);
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
        matches!(&error, SaveError::NothingDeleted { table } if table == "save_orders"),
        "{error:?}"
    );
    assert_eq!(shop.recorded().await.len(), 3);
}

async fn saving_a_new_row_with_a_client_key_names_the_fix(db: TestDb) {
    let shop = Shop::open(db).await;
    fn placed() -> OrderPlaced {
        OrderPlaced {
            order_id: 1,
            total_cents: 1,
        }
    }
    let error = shop
        .customer("new")
        .save_with_events(&shop.test.outbox(), |_| [placed()])
        .await
        .unwrap_err();
    assert!(matches!(error, SaveError::RowMissing { .. }), "{error:?}");
    assert!(error.to_string().contains("insert_with_events"), "{error}");
    assert_eq!((shop.customers().await, shop.recorded().await.len()), (0, 0));
    shop.customer("new")
        .insert_with_events(&shop.test.outbox(), |_| [placed()])
        .await
        .unwrap();
    assert_eq!(shop.recorded().await.len(), 1);
}

async fn repeated_business_key_is_refused_with_its_model(db: TestDb) {
    let shop = Shop::open(db).await;
    fn greeted() -> CustomerGreeted {
        CustomerGreeted {
            customer: "a".to_owned(),
            greeting: "hello".to_owned(),
        }
    }
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| [greeted()])
        .await
        .unwrap();
    let error = shop
        .order(2)
        .insert_with_events(&shop.test.outbox(), |_| [greeted()])
        .await
        .unwrap_err();
    assert!(
        matches!(error, SaveError::Record(RecordError::DuplicateKey { .. })),
        "{error:?}"
    );
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

async fn ambient_ids_travel_with_the_event(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    // Closures run in the task of the save.
    context()
        .scope(async {
            let given = [OrderPlaced {
                order_id: 1,
                total_cents: 1,
            }];
            shop.order(1)
                .insert_with_events(&outbox, |_| given)
                .await
                .unwrap();
            shop.order(2)
                .insert_with_events(&outbox, |order| {
                    [OrderPlaced {
                        order_id: order.id,
                        total_cents: 1,
                    }]
                })
                .await
                .unwrap();
            let tx = outbox.begin().await.unwrap();
            outbox_sea_orm::record(
                &tx,
                [OrderPlaced {
                    order_id: 3,
                    total_cents: 1,
                }],
            )
            .await
            .unwrap();
            tx.commit().await.unwrap();
        })
        .await;
    // The future is polled inside the scope.
    let save = shop.order(4).insert_with_events(&outbox, |_| {
        [OrderPlaced {
            order_id: 4,
            total_cents: 1,
        }]
    });
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

async fn headers_and_delays_are_kept(db: TestDb) {
    let shop = Shop::open(db).await;
    let message = |order_id| {
        NewMessage::from_event(&OrderPlaced {
            order_id,
            total_cents: 1,
        })
        .unwrap()
    };
    let tenant = message(1).with_header("tenant", "Grüße, \"100%\"").unwrap();
    let later = message(2).available_at(time::OffsetDateTime::now_utc() + time::Duration::hours(1));
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| [tenant, later])
        .await
        .unwrap();
    let due = shop.test.fetch_all().await;
    assert_eq!(due.len(), 1, "the delayed message waits");
    assert_eq!(
        due[0].message.as_ref().unwrap().headers.get("Tenant"),
        Some("Grüße, \"100%\"")
    );
    let total = shop
        .test
        .int(&format!("SELECT COUNT(*) FROM {}", shop.test.messages()))
        .await;
    assert_eq!(total, 2);
}

async fn a_commit_wakes_the_relay(db: TestDb) {
    let shop = Shop::open(db).await;
    let mut commits = wake::Listener::new();
    let events = [OrderPlaced {
        order_id: 1,
        total_cents: 1,
    }];
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| events)
        .await
        .unwrap();
    commits.notified().await;
    let tx = shop.test.outbox().begin().await.unwrap();
    outbox_sea_orm::record(
        &tx,
        [OrderPlaced {
            order_id: 1,
            total_cents: 1,
        }],
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
    commits.notified().await;
}

//! Saves and records in an open transaction.

use std::future::{Future, poll_fn};
use std::task::Poll;

use outbox_core::{NewMessage, wake};
use outbox_sea_orm::{AggregateRoot, ErrorKind, RecordError, SaveError, SaveWithEvents, record};
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ActiveModelTrait, ConnectionTrait, DbBackend, DbErr, Set, TransactionTrait};

use crate::on_every_backend;
use crate::shop::{Gate, OrderPlaced, Shop, placed};
use crate::support::{Backend, TestDb};

on_every_backend!(
    saves_in_one_transaction_do_not_undo_each_other,
    dropped_save_makes_its_transaction_uncommittable,
    dropped_record_makes_its_transaction_uncommittable,
    failed_record_makes_its_level_uncommittable,
    ignored_invalid_event_makes_its_level_uncommittable,
    failed_record_of_a_joined_save_undoes_only_that_save,
    rolled_back_seaorm_transaction_commits_nothing,
    ignored_error_in_a_hook_fails_the_save,
    save_continues_after_its_caller_is_dropped,
    save_does_not_begin_after_its_caller_is_dropped,
);

async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polled = 0;
    poll_fn(|context| {
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled >= polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// sqlx names savepoints by depth, so a failed save could roll back a concurrent save.
async fn saves_in_one_transaction_do_not_undo_each_other(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.customer("taken").insert(&tx).await.unwrap();
    let mut expected = 1;
    for n in 0..5 {
        let [refused, a, b] = [
            shop.customer("taken"),
            shop.customer(&format!("a{n}")),
            shop.customer(&format!("b{n}")),
        ]
        .map(|customer| customer.insert_with_events(&tx, |_| [placed(1)]));
        let (refused, a, b) = match n % 3 {
            0 => tokio::join!(refused, a, b),
            1 => {
                let (a, refused, b) = tokio::join!(a, refused, b);
                (refused, a, b)
            }
            _ => {
                let (b, a, refused) = tokio::join!(b, a, refused);
                (refused, a, b)
            }
        };
        assert!(matches!(refused, Err(SaveError::Database(_))), "{refused:?}");
        a.unwrap();
        b.unwrap();
        expected += 2;
    }
    tx.commit().await.unwrap();
    assert_eq!(shop.customers().await, expected);
    let numbers: Vec<_> = shop
        .recorded()
        .await
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert_eq!(numbers, (1..=10).map(Some).collect::<Vec<_>>());
}

async fn dropped_save_makes_its_transaction_uncommittable(db: TestDb) {
    let shop = Shop::open(db).await;
    for polls in 1.. {
        let tx = shop.test.outbox().begin().await.unwrap();
        shop.order(1)
            .insert_with_events(&tx, |_| [placed(1)])
            .await
            .unwrap();
        let save = shop.order(2).insert_with_events(&tx, |_| [placed(2)]);
        let is_ready = dropped_after(polls, save).await.map(Result::unwrap).is_some();
        assert_eq!(
            shop.order(3).insert(&tx).await.is_ok(),
            is_ready,
            "after {polls} polls"
        );
        assert_eq!(tx.commit().await.is_ok(), is_ready, "after {polls} polls");
        if is_ready {
            break;
        }
    }
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (3, 2));
    let outbox = shop.test.outbox();
    for _ in 0..4 {
        let save = shop.order(4).insert_with_events(&outbox, |_| [placed(1)]);
        save.await.unwrap();
    }
    assert_eq!(shop.recorded().await.last().unwrap().1, Some(5));
}

async fn dropped_record_makes_its_transaction_uncommittable(db: TestDb) {
    let shop = Shop::open(db).await;
    let events = || (1..=3).map(placed).collect::<Vec<_>>();
    for polls in 1.. {
        let tx = shop.test.outbox().begin().await.unwrap();
        let is_ready = dropped_after(polls, record(&tx, events()))
            .await
            .map(Result::unwrap)
            .is_some();
        assert_eq!(tx.commit().await.is_ok(), is_ready, "after {polls} polls");
        if is_ready {
            break;
        }
    }
    shop.test.record(events()).await.unwrap();
    let numbers: Vec<_> = shop
        .recorded()
        .await
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert_eq!(numbers, [1, 1, 1, 2, 2, 2].map(Some));
}

/// On MySQL and SQLite, sequences are assigned before the record fails, so a commit would leave a
/// gap.
async fn failed_record_makes_its_level_uncommittable(test: TestDb) {
    let keyed = || NewMessage::from_event(&Probe::noted("a", 1).with_dedup_key("k")).unwrap();
    test.record([keyed()]).await.unwrap();
    let tx = test.outbox().begin().await.unwrap();
    let error = record(&tx, [keyed()]).await.unwrap_err();
    assert!(matches!(error, RecordError::DuplicateKey { .. }), "{error:?}");
    tx.commit().await.unwrap_err();

    let tx = test.outbox().begin().await.unwrap();
    let nested = tx.begin().await.unwrap();
    record(&nested, [keyed()]).await.unwrap_err();
    nested.rollback().await.unwrap();
    record(&tx, [Probe::noted("a", 2)]).await.unwrap();
    tx.commit().await.unwrap();
    let rows = test.fetch_all().await;
    let numbers: Vec<_> = rows
        .into_iter()
        .map(|row| row.message.unwrap().sequence)
        .collect();
    assert_eq!(numbers, [1, 2].map(Some));
}

async fn ignored_invalid_event_makes_its_level_uncommittable(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    shop.order(1).insert(&tx).await.unwrap();
    let refused = record(&tx, [Probe::noted("", 1)]).await;
    assert!(matches!(refused, Err(RecordError::Event(_))), "{refused:?}");
    let refused = tx.commit().await.unwrap_err();
    assert!(outbox_sea_orm::is_commit_refused(&refused));
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

async fn failed_record_of_a_joined_save_undoes_only_that_save(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.outbox().begin().await.unwrap();
    for ignores in [true, false] {
        let saved = AggregateRoot::new(shop.order(1)).save_by(&tx, move |order, tx| {
            Box::pin(async move {
                let saved = order.insert(tx).await?;
                let recorded = record(tx, [Probe::noted("", 1)]).await;
                recorded
                    .map(drop)
                    .or_else(|error| match ignores {
                        true => Ok(()),
                        false => Err(DbErr::Custom(error.to_string())),
                    })
                    .map(|()| saved)
            })
        });
        let refused = saved.await;
        assert!(
            matches!(refused, Err(SaveError::Database(_))),
            "{ignores}: {refused:?}"
        );
    }
    let saved = shop.order(2).insert_with_events(&tx, |order| [placed(order.id)]);
    saved.await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

/// The server's rollback leaves no mark in SeaORM's transaction, so its connection is closed. On
/// SQLite the commit fails.
async fn rolled_back_seaorm_transaction_commits_nothing(db: TestDb) {
    let shop = Shop::open(db).await;
    let tx = shop.test.db.begin().await.unwrap();
    shop.order(1).insert(&tx).await.unwrap();
    let mut undone = shop.customer("a");
    undone.marker = Set("undone".to_owned());
    let error = undone
        .insert_with_events(&tx, |_| None::<OrderPlaced>)
        .await
        .unwrap_err();
    assert!(matches!(&error, SaveError::TransactionLost(_)), "{error:?}");
    let _ = shop.order(2).insert(&tx).await;
    tx.commit().await.unwrap_err();
    assert_eq!(shop.orders().await, 0);
    let outbox = shop.test.outbox();
    for _ in 0..4 {
        let save = shop.order(3).insert_with_events(&outbox, |_| [placed(1)]);
        save.await.unwrap();
    }
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (4, 4));
}

/// If the save records no event, no later statement detects the ignored error, and sqlx reports
/// PostgreSQL's rollback as a commit.
async fn ignored_error_in_a_hook_fails_the_save(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let is_refused = shop.test.sql_backend() == DbBackend::Postgres;
    let swallows = |id| {
        let mut customer = shop.customer(id);
        customer.marker = Set("swallows after".to_owned());
        customer.insert_with_events(&outbox, |_| None::<OrderPlaced>)
    };
    let saved = swallows("a").await;
    assert_eq!(saved.is_err(), is_refused, "{saved:?}");

    let tx = outbox.begin().await.unwrap();
    let mut customer = shop.customer("b");
    customer.marker = Set("swallows after".to_owned());
    let joined = customer.insert_with_events(&tx, |_| None::<OrderPlaced>).await;
    assert_eq!(joined.is_err(), is_refused, "{joined:?}");
    shop.order(1)
        .insert_with_events(&tx, |_| [placed(1)])
        .await
        .unwrap();
    tx.commit().await.unwrap();

    let stored = format!(
        "SELECT count(*) FROM save_customers WHERE id LIKE '%{}'",
        shop.marker
    );
    assert_eq!(shop.test.int(&stored).await, if is_refused { 0 } else { 2 });
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

async fn save_continues_after_its_caller_is_dropped(db: TestDb) {
    let shop = Shop::open(db).await;
    let outbox = shop.test.outbox();
    let mut commits = wake::Listener::new();
    for (saves, gate) in [(1, "a"), (2, "b")] {
        let id = format!("{gate}{}", shop.marker);
        let gate = Gate::close(&if saves == 1 { id } else { format!("{id} is saved") });
        let save = shop
            .customer(if saves == 1 { "a" } else { "b" })
            .insert_with_events(&outbox, |_| [placed(1)]);
        tokio::select! {
            saved = save => panic!("the hook waits, but {saved:?}"),
            () = gate.reached() => {}
        }
        gate.open();
        while shop.customers().await < saves {
            commits.notified().await;
        }
        assert_eq!(shop.recorded().await.len() as i64, saves);
    }
}

async fn save_does_not_begin_after_its_caller_is_dropped(db: TestDb) {
    let shop = Shop::open(db).await;
    let pool = match shop.test.backend {
        Backend::SqliteMemory => shop.test.db.clone(),
        _ => {
            let connected = shop.test.one_connection();
            connected.await
        }
    };
    let outbox = outbox_sea_orm::OutboxConnection::new(pool.clone(), shop.test.config());
    let taken = pool.begin().await.unwrap();
    for polls in 1..4 {
        let save = shop.order(1).insert_with_events(&outbox, |_| [placed(1)]);
        assert!(dropped_after(1, save).await.is_none());
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
    }
    taken.rollback().await.unwrap();
    let save = shop.order(2).insert_with_events(&outbox, |_| [placed(1)]);
    save.await.unwrap();
    pool.execute_unprepared("SELECT 1").await.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

/// After a deadlock, MySQL rolls back the transaction. Later writes must not be committed alone.
#[tokio::test]
async fn record_that_loses_a_deadlock_stores_nothing() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "deadlock").await else {
            continue;
        };
        let shop = Shop::open(test).await;
        shop.test.record([placed(1), placed(2)]).await.unwrap();
        let outbox = shop.test.outbox();
        let (a, b) = (outbox.begin().await.unwrap(), outbox.begin().await.unwrap());
        record(&a, [placed(1)]).await.unwrap();
        record(&b, [placed(2)]).await.unwrap();
        let (of_a, of_b) = tokio::join!(
            async {
                let recorded = record(&a, [placed(2)]).await;
                (
                    recorded,
                    shop.order(1).insert(&a).await.is_ok(),
                    a.commit().await.is_ok(),
                )
            },
            async {
                let recorded = record(&b, [placed(1)]).await;
                (
                    recorded,
                    shop.order(1).insert(&b).await.is_ok(),
                    b.commit().await.is_ok(),
                )
            }
        );
        let (lost, won) = if of_a.0.is_err() {
            (of_a, of_b)
        } else {
            (of_b, of_a)
        };
        assert!(
            lost.0.is_err_and(|error| error.kind() == ErrorKind::Conflict),
            "{backend:?}"
        );
        assert_eq!((lost.1, lost.2), (false, false), "{backend:?}");
        assert!(won.0.is_ok() && won.1 && won.2, "{backend:?}");
        assert_eq!(
            (shop.orders().await, shop.recorded().await.len()),
            (1, 4),
            "{backend:?}"
        );
    }
}

#[tokio::test]
async fn record_in_a_rolled_back_sqlite_transaction_stores_nothing() {
    let test = TestDb::open(Backend::Sqlite, "undone").await.unwrap();
    let shop = Shop::open(test).await;
    let undo = "CREATE TRIGGER undo BEFORE INSERT ON outbox_messages WHEN NEW.aggregate_id = '7' \
                BEGIN SELECT RAISE(ROLLBACK, 'undone'); END";
    shop.test.execute(undo).await;
    let sql = format!(
        "INSERT INTO save_orders (marker, total_cents) VALUES ('{}', 1)",
        shop.marker
    );

    let ours = shop.test.outbox().begin().await.unwrap();
    record(&ours, [placed(7)]).await.unwrap_err();
    ours.execute_unprepared(&sql).await.unwrap_err();
    ours.commit().await.unwrap_err();

    let seaorms = shop.test.db.begin().await.unwrap();
    record(&seaorms, [placed(7)]).await.unwrap_err();
    seaorms.execute_unprepared(&sql).await.unwrap();
    seaorms.commit().await.unwrap_err();

    shop.test.record([placed(1)]).await.unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 1));
}

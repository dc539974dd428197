//! Which rows a purge deletes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::{Message, MessageId};

use super::*;
use crate::database::{Trouble, trouble};
use crate::dead_letter::{self, DeadLetterSelection, DeadLetters, NewDeadLetter};
use crate::dedup::sql::{Key, Status};
use crate::tests::database::{TestDb, incoming, message};

fn key(id: u128) -> Key<'static> {
    Key {
        consumer: "billing",
        id: Uuid::from_u128(id),
    }
}

impl TestDb {
    async fn insert_row(&self, id: u128, status: Status) {
        assert!(self.sql.insert(&self.db, key(id), status, 0, None).await.unwrap());
    }

    async fn expire(&self, id: u128) {
        let mut sql = self.sql.sql(format!(
            "UPDATE {} SET expires_at = {} WHERE id = ",
            self.sql.messages(),
            plus_micros(self.sql.backend(), self.sql.now(), "-5000000")
        ));
        sql.bind(Uuid::from_u128(id));
        assert_eq!(
            self.db
                .execute_raw(sql.statement())
                .await
                .unwrap()
                .rows_affected(),
            1
        );
    }

    async fn status(&self, id: u128) -> Option<Status> {
        let row = self.sql.row(&self.db, key(id)).await.unwrap();
        row.map(|row| row.status)
    }

    async fn purge(&self) -> u64 {
        self.try_purge().await.unwrap()
    }

    async fn try_purge(&self) -> Result<u64, DbErr> {
        Ok(purge_batch(&self.db, &self.sql, BATCH).await?.0)
    }
}

#[tokio::test]
async fn only_expired_inbox_rows_are_deleted() {
    for test in TestDb::open_all().await {
        for (id, status) in [(1, Status::Handled), (2, Status::Failed), (3, Status::Dead)] {
            test.insert_row(id, status).await;
            test.insert_row(id + 10, status).await;
            test.expire(id).await;
        }
        assert!(test.sql.count(&test.db, key(2), 10).await.unwrap());
        assert_eq!(test.purge().await, 2);
        assert_eq!(test.status(1).await, None);
        assert_eq!(test.status(2).await, Some(Status::Failed));
        assert_eq!(test.status(3).await, None);
        for id in 11..14 {
            assert!(test.status(id).await.is_some(), "{id}");
        }
        assert_eq!(test.purge().await, 0);
    }
}

#[tokio::test]
async fn a_dead_row_stays_as_long_as_its_dead_letter() {
    for test in TestDb::open_all().await {
        let id = MessageId::from(Uuid::from_u128(7));
        let message = Message {
            id,
            event_id: id.into(),
            ..message()
        };
        let incoming = incoming(1, b"");
        let letter = NewDeadLetter {
            consumer: "billing",
            message: Some(&message),
            incoming: &incoming,
            error: "",
            attempts: 1,
        };
        dead_letter::insert(&test.db, &test.sql, &letter).await.unwrap();
        assert_eq!(letter.id().unwrap(), id_of_message("billing", id.as_uuid()));
        test.insert_row(7, Status::Dead).await;
        test.insert_row(8, Status::Dead).await;
        test.expire(7).await;
        test.expire(8).await;
        assert_eq!(test.purge().await, 1);
        assert_eq!(
            (test.status(7).await, test.status(8).await),
            (Some(Status::Dead), None)
        );
        let letters = DeadLetters::new(test.db.clone()).with_names(test.names.clone());
        assert_eq!(letters.discard(&DeadLetterSelection::all()).await.unwrap(), 1);
        assert_eq!(
            test.purge().await,
            0,
            "its expiry was put off, out of the way of others"
        );
        test.expire(7).await;
        assert_eq!(test.purge().await, 1);
    }
}

#[tokio::test]
async fn large_purge_runs_in_batches() {
    for test in TestDb::open_all().await {
        for id in 0..25 {
            test.insert_row(id, Status::Handled).await;
            test.expire(id).await;
        }
        let mut batches = Vec::new();
        loop {
            let (purged, more) = purge_batch(&test.db, &test.sql, 10).await.unwrap();
            batches.push(purged);
            if !more {
                break;
            }
        }
        assert_eq!(batches, [10, 10, 5]);
    }
}

#[tokio::test]
async fn row_under_claim_is_skipped() {
    for test in TestDb::open_all().await {
        if test.db.get_database_backend() == DbBackend::Sqlite {
            continue;
        }
        test.insert_row(1, Status::Failed).await;
        test.insert_row(2, Status::Handled).await;
        test.expire(1).await;
        test.expire(2).await;
        let tx = test.begin().await;
        assert!(test.sql.claim(&tx, key(1)).await.unwrap());
        assert_eq!(test.purge().await, 1);
        tx.commit().await.unwrap();
        assert_eq!(test.purge().await, 0);
        assert_eq!(
            (test.status(1).await, test.status(2).await),
            (Some(Status::Handled), None)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_during_purge_have_at_most_one_effect() {
    for test in TestDb::open_all().await {
        for round in 0..20 {
            test.insert_row(round, Status::Handled).await;
            test.expire(round).await;
            let claims: Vec<_> = (0..3)
                .map(|_| {
                    let (db, sql) = (test.db.clone(), test.sql.clone());
                    tokio::spawn(async move {
                        let database = Database::inspect(db).await.unwrap();
                        loop {
                            let tx = database.begin().await.unwrap();
                            match sql.insert(&tx, key(round), Status::Handled, 0, None).await {
                                Ok(inserted) => {
                                    tx.commit().await.unwrap();
                                    return inserted;
                                }
                                Err(error) => {
                                    assert_eq!(trouble(&error), Trouble::Conflict, "{error}");
                                    tx.rollback().await.unwrap();
                                }
                            }
                        }
                    })
                })
                .collect();
            let purged = loop {
                match test.try_purge().await {
                    Ok(purged) => break purged,
                    Err(error) => assert_eq!(trouble(&error), Trouble::Conflict, "{error}"),
                }
            };
            let mut effects = 0;
            for claim in claims {
                effects += u64::from(claim.await.unwrap());
            }
            assert!(effects <= purged, "{effects} effects after {purged} purges");
            let remembered = test.status(round).await.is_some();
            assert_eq!(remembered, effects == 1 || purged == 0, "an effect was forgotten");
            let rest = format!("DELETE FROM {}", test.sql.messages());
            test.db.execute_unprepared(&rest).await.unwrap();
        }
    }
}

#[tokio::test]
async fn purge_loop_respects_permission_and_stop() {
    let test = TestDb::open_all().await.remove(0);
    test.insert_row(1, Status::Handled).await;
    test.expire(1).await;
    let stop = CancellationToken::new();
    let every = Duration::from_millis(1);
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    let allowed = Arc::new(AtomicBool::new(false));
    let may_forget = {
        let allowed = allowed.clone();
        move || {
            let _ = asked.send(());
            std::future::ready(allowed.load(Ordering::SeqCst))
        }
    };
    let run = run(test.db.clone(), test.sql.clone(), every, may_forget, stop.clone());
    let task = tokio::spawn(run);
    for _ in 0..3 {
        asks.recv().await.unwrap();
    }
    assert!(test.status(1).await.is_some());
    allowed.store(true, Ordering::SeqCst);
    let gone = async {
        while test.status(1).await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("it is deleted");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), task)
        .await
        .expect("it ends")
        .unwrap();
}

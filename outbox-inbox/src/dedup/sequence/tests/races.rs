//! Concurrent claims of several processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::*;
use crate::database::{Trouble, trouble};

async fn race(
    db: &TestDb,
    sequences: impl IntoIterator<Item = u64>,
    end: End,
) -> BTreeMap<u64, Vec<Outcome>> {
    let sequences: Vec<u64> = sequences.into_iter().collect();
    let start = Arc::new(Barrier::new(sequences.len()));
    let mut tasks = JoinSet::new();
    for sequence in sequences {
        let (start, database) = (start.clone(), db.database.clone());
        let backend = db.db.get_database_backend();
        tasks.spawn(async move {
            let sql = InboxSql::new(backend, &TableNames::new(), DAYS);
            let aggregate = Aggregate::new("order", "1");
            let place = Place {
                sql: &sql,
                consumer: "books",
                aggregate: &aggregate,
                source: "shop",
                event: event(sequence),
            };
            start.wait().await;
            loop {
                let tx = database.begin().await.unwrap();
                let turn = match place.claim(&tx, Wait).await {
                    Ok(Early { .. }) if end == End::WhenDone => None,
                    Ok(turn) => Some(turn),
                    Err(error) => {
                        assert_eq!(trouble(&error), Trouble::Conflict, "{error}");
                        None
                    }
                };
                let Some(turn) = turn else {
                    tx.rollback().await.unwrap();
                    tokio::task::yield_now().await;
                    continue;
                };
                if turn == Claimed {
                    assert!(place.still_holds(&tx).await.unwrap());
                }
                tx.commit().await.unwrap();
                return (sequence, turn);
            }
        });
    }
    let mut turns: BTreeMap<u64, Vec<Outcome>> = BTreeMap::new();
    while let Some(turn) = tasks.join_next().await {
        let (sequence, turn) = turn.unwrap();
        turns.entry(sequence).or_default().push(turn);
    }
    turns
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    AtOnce,
    WhenDone,
}

async fn one_concurrent_duplicate_runs(db: TestDb) {
    for (round, failed) in [(1, false), (2, false), (3, true)] {
        if failed {
            Lane::new(&db).fail(round).await;
        }
        let turns = race(&db, [round; 32], End::AtOnce).await.remove(&round).unwrap();
        let mine = turns.iter().filter(|turn| **turn == Claimed).count();
        let stale = turns.iter().filter(|turn| **turn == Duplicate).count();
        assert_eq!((mine, stale), (1, 31), "{round}");
    }
    db.close().await;
}

async fn concurrent_numbers_each_run_once(db: TestDb) {
    let sequences = (1..=12).chain(1..=12).rev();
    let turns = race(&db, sequences, End::WhenDone).await;
    for (sequence, mut turns) in turns {
        turns.sort_by_key(|turn| *turn != Claimed);
        assert_eq!(turns, [Claimed, Duplicate], "{sequence}");
    }
    assert_eq!(Lane::new(&db).row().await.unwrap().last, 12);
    db.close().await;
}

async fn duplicate_waits_for_running_message(db: TestDb) {
    if db.db.get_database_backend() == DbBackend::Sqlite {
        return outbox_testing::not_applicable("its transactions themselves wait for each other");
    }
    let lane = Lane::new(&db);
    for sequence in [1, 2] {
        for commit in [false, true] {
            let running = lane.begin().await;
            assert_eq!(lane.at(sequence).claim(&running, Wait).await.unwrap(), Claimed);
            let place = lane.at(sequence);
            let duplicate = async {
                let tx = lane.begin().await;
                let turn = place.claim(&tx, Wait).await.unwrap();
                tx.commit().await.unwrap();
                turn
            };
            tokio::pin!(duplicate);
            tokio::time::timeout(Duration::from_millis(200), &mut duplicate)
                .await
                .expect_err("the duplicate has decided too early");
            if commit {
                running.commit().await.unwrap();
                assert_eq!(duplicate.await, Duplicate, "{sequence} was done before");
                continue;
            }
            running.rollback().await.unwrap();
            assert_eq!(duplicate.await, Claimed);
            let back = format!("UPDATE inbox_sequences SET last_sequence = {}", sequence - 1);
            db.db.execute_unprepared(&back).await.unwrap();
        }
    }
    db.close().await;
}

on_every_database!(
    one_concurrent_duplicate_runs,
    concurrent_numbers_each_run_once,
    duplicate_waits_for_running_message,
);

//! PostgreSQL only: the other databases never wait without limit.

use futures_util::future::{FutureExt as _, LocalBoxFuture, join_all};
use outbox_core::{Aggregate, Message, MessageId};
use outbox_sea_orm::TableNames;
use sea_orm::{DbBackend, Statement, TransactionTrait as _};
use uuid::Uuid;

use super::*;
use crate::dead_letter::{DeadLetterSelection, DeadLetters, NewDeadLetter, retry};
use crate::dedup::attempts::Attempts;
use crate::dedup::claim::{Claimant, claim_all};
use crate::dedup::sequence::{Gaps, Place};
use crate::dedup::sequences::NumberedEvent;
use crate::dedup::sql::{InboxSql, Key, Status};
use crate::dedup::{Outcome, batch};
use crate::handler::Strategy;
use crate::tests::database::{Kind, TestDb, incoming, message};

const SESSION: &str = "1h";

const WITHOUT_LIMIT: Duration = Duration::from_secs(60);

async fn open() -> Option<(TestDb, InboxSql)> {
    let of_session = |options: &mut sea_orm::ConnectOptions| {
        options.map_sqlx_postgres_opts(|options| options.options([("lock_timeout", SESSION)]));
    };
    let db = TestDb::open_with(Kind::Postgres, of_session).await?;
    let sql = InboxSql::new(DbBackend::Postgres, &TableNames::new(), Duration::from_secs(3600));
    let sql = sql.limited(db.database.lock_limit());
    Some((db, sql))
}

fn place<'a>(sql: &'a InboxSql, aggregate: &'a Aggregate, sequence: u64) -> Place<'a> {
    Place {
        sql,
        consumer: "books",
        aggregate,
        source: "shop",
        event: NumberedEvent {
            sequence,
            id: Uuid::now_v7(),
            recorded_at: 0,
        },
    }
}

async fn lock_timeout(tx: &DatabaseTransaction) -> String {
    let show = Statement::from_string(DbBackend::Postgres, "SHOW lock_timeout");
    let row = tx.query_one_raw(show).await.unwrap().unwrap();
    row.try_get("", "lock_timeout").unwrap()
}

#[tokio::test]
async fn handler_runs_with_lock_timeout_of_its_session() {
    let Some((db, sql)) = open().await else {
        return;
    };
    for (gaps, numbers) in [
        (Gaps::Wait, vec![1, 2]),
        (Gaps::Accept, vec![1, 3]),
        (Gaps::Ignore, vec![6, 8]),
    ] {
        let aggregate = Aggregate::new("order", format!("{gaps:?}"));
        for sequence in numbers {
            let tx = db.database.begin().await.unwrap();
            let claim = place(&sql, &aggregate, sequence).claim(&tx, gaps).await;
            assert_eq!(claim.unwrap(), Outcome::Claimed);
            assert_eq!(lock_timeout(&tx).await, SESSION, "{gaps:?}, {sequence}");
            tx.commit().await.unwrap();
        }
        let tx = db.database.begin().await.unwrap();
        let again = place(&sql, &aggregate, 1).claim_again(&tx, true, gaps).await;
        assert_eq!(again.unwrap(), Outcome::Claimed);
        assert_eq!(lock_timeout(&tx).await, SESSION, "{gaps:?}, again");
        tx.commit().await.unwrap();
    }
    let messages: Vec<Message> = (0..3).map(|_| message()).collect();
    let claimants: Vec<_> = messages.iter().map(|message| claimant(&sql, message)).collect();
    for (claimants, mine) in [
        (&claimants[2..], vec![true]),
        (&claimants[..], vec![true, true, false]),
    ] {
        let tx = db.database.begin().await.unwrap();
        assert_eq!(claim_all(&tx, claimants).await.unwrap(), Some(mine));
        assert_eq!(lock_timeout(&tx).await, SESSION);
        tx.commit().await.unwrap();
    }
    for (id, status) in [(1, Status::Failed), (2, Status::Dead)] {
        let key = key(id);
        assert!(sql.insert(&db.db, key, status, 1, None).await.unwrap());
        let tx = db.database.begin().await.unwrap();
        let claimed = match status {
            Status::Failed => sql.claim(&tx, key).await,
            _ => sql.revive(&tx, key).await,
        };
        assert!(claimed.unwrap());
        assert_eq!(lock_timeout(&tx).await, SESSION, "{status:?}");
        tx.commit().await.unwrap();
    }
    db.close().await;
}

fn claimant<'a>(sql: &'a InboxSql, message: &'a Message) -> Claimant<'a> {
    Claimant {
        sql,
        consumer: "books",
        message,
        source: "shop",
        strategy: Strategy::MessageId,
        id: message.event_id.as_uuid(),
    }
}

fn key(id: u128) -> Key<'static> {
    Key {
        consumer: "books",
        id: Uuid::from_u128(id),
    }
}

type Wait<'a> = (&'static str, LocalBoxFuture<'a, Result<(), DbErr>>);

async fn all_end_in_time(waits: Vec<Wait<'_>>) {
    let waits = waits
        .into_iter()
        .map(async |(name, wait)| (name, tokio::time::timeout(WITHOUT_LIMIT, wait).await));
    for (name, ended) in join_all(waits).await {
        let ended = ended.unwrap_or_else(|_| panic!("{name} has no limit"));
        let error = ended.expect_err(name).to_string();
        assert!(error.contains("lock timeout"), "{name}: {error}");
    }
}

#[tokio::test]
async fn wait_for_row_of_frozen_process_is_bounded() {
    let Some((db, sql)) = open().await else {
        return;
    };
    let event = outbox_core::EventId::from(MessageId::fresh());
    let failed = Key {
        id: event.as_uuid(),
        ..key(1)
    };
    let (pool, dead, new) = (&db.db, key(2), key(3));
    for (key, status) in [(failed, Status::Failed), (dead, Status::Dead)] {
        assert!(sql.insert(pool, key, status, 1, None).await.unwrap());
    }
    let frozen = pool.begin().await.unwrap();
    assert!(sql.claim(&frozen, failed).await.unwrap());
    assert!(sql.revive(&frozen, dead).await.unwrap());
    sql.insert(&frozen, new, Status::Handled, 0, None).await.unwrap();
    let attempts = Attempts {
        sql: &sql,
        database: &db.database,
        consumer: "books",
        event_id: event,
        attempts_max: 5,
        run_max: Duration::from_secs(20),
    };
    let fail = async { sql.fail(pool, failed, "no", true).await.map(drop) };
    let bury = async { sql.bury(pool, failed, "no").await.map(drop) };
    let insert = async { sql.insert(pool, new, Status::Handled, 0, None).await.map(drop) };
    let insert_all = async { batch::insert_all(&sql, pool, "books", &[new.id]).await.map(drop) };
    all_end_in_time(vec![
        ("start", async { attempts.start().await.map(drop) }.boxed_local()),
        ("take_back", attempts.take_back().boxed_local()),
        ("end", attempts.end().boxed_local()),
        ("fail", fail.boxed_local()),
        ("bury", bury.boxed_local()),
        (
            "revive",
            async { sql.revive(pool, dead).await.map(drop) }.boxed_local(),
        ),
        ("insert", insert.boxed_local()),
        ("insert_all", insert_all.boxed_local()),
    ])
    .await;
    frozen.rollback().await.unwrap();
    db.close().await;
}

#[tokio::test]
async fn wait_for_sequence_of_frozen_process_is_bounded() {
    let Some((db, sql)) = open().await else {
        return;
    };
    let [old, fresh] = ["old", "fresh"].map(|id| Aggregate::new("order", id));
    let tx = db.database.begin().await.unwrap();
    place(&sql, &old, 1).claim(&tx, Gaps::Wait).await.unwrap();
    tx.commit().await.unwrap();
    let frozen = db.db.begin().await.unwrap();
    for (aggregate, number) in [(&old, 2), (&fresh, 1)] {
        let claimed = place(&sql, aggregate, number).claim(&frozen, Gaps::Wait).await;
        assert_eq!(claimed.unwrap(), Outcome::Claimed);
    }
    let [next, late, first] = [(&old, 2), (&old, 4), (&fresh, 1)].map(|(of, n)| place(&sql, of, n));
    let mut txs = Vec::new();
    for _ in 0..5 {
        txs.push(db.database.begin().await.unwrap());
    }
    let claim = async { next.claim(&txs[0], Gaps::Wait).await.map(drop) };
    let beyond_a_gap = async { late.claim(&txs[1], Gaps::Accept).await.map(drop) };
    let beginning = async { first.claim(&txs[2], Gaps::Wait).await.map(drop) };
    let again = async { late.claim_again(&txs[4], true, Gaps::Accept).await.map(drop) };
    all_end_in_time(vec![
        ("claim", claim.boxed_local()),
        ("beyond a gap", beyond_a_gap.boxed_local()),
        ("beginning", beginning.boxed_local()),
        ("pass", async { late.pass(&txs[3]).await.map(drop) }.boxed_local()),
        ("again", again.boxed_local()),
        ("note_failing", next.note_failing(&db.db).boxed_local()),
    ])
    .await;
    drop(txs);
    frozen.rollback().await.unwrap();
    db.close().await;
}

#[tokio::test]
async fn wait_for_letter_of_frozen_process_is_bounded() {
    let Some((db, sql)) = open().await else {
        return;
    };
    let pool = &db.db;
    for stream_sequence in 1..=3 {
        let message = Message {
            sequence: Some(stream_sequence),
            ..message()
        };
        let incoming = incoming(stream_sequence, b"");
        let letter = NewDeadLetter {
            consumer: "books",
            message: Some(&message),
            incoming: &incoming,
            error: "declined",
            attempts: 1,
        };
        let inserted = crate::dead_letter::insert(pool, &sql, &letter).await;
        assert!(inserted.unwrap());
    }
    let all = DeadLetterSelection::all();
    assert_eq!(DeadLetters::new(pool.clone()).retry(&all).await.unwrap(), 3);
    let due = retry::due(pool, &sql, "books", &[], 10, usize::MAX)
        .await
        .unwrap();
    let [first, marked, open] = &due[..] else {
        panic!("{due:?}");
    };
    assert!(retry::begin(pool, &sql, open).await.unwrap());
    let frozen = pool.begin().await.unwrap();
    let lock = "UPDATE inbox_dead_letters SET error = 'frozen' WHERE stream_sequence > 1";
    frozen.execute_unprepared(lock).await.unwrap();
    let aggregate = Aggregate::new("order", "1");
    let begin = async { retry::begin(pool, &sql, marked).await.map(drop) };
    let failed = async {
        let failed = retry::failed_again(pool, &sql, open, None, "no").await;
        failed.map(drop)
    };
    let hold_behind = async {
        let behind = Some(("books", &aggregate));
        let failed = retry::failed_again(pool, &sql, first, behind, "no").await;
        failed.map(drop)
    };
    all_end_in_time(vec![
        ("begin", begin.boxed_local()),
        ("put_back", retry::put_back(pool, &sql, open).boxed_local()),
        ("failed_again", failed.boxed_local()),
        ("hold_behind", hold_behind.boxed_local()),
    ])
    .await;
    frozen.rollback().await.unwrap();
    db.close().await;
}

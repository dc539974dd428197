//! Failures recorded while another process works on the same message.

use std::time::Duration;

use outbox_core::{Incoming, Message};
use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

use super::*;
use crate::dedup::sequence::Gaps;
use crate::handler::Strategy;
use crate::tests::database::{TestDb, incoming, message, on_every_database};

fn letter<'a>(message: &'a Message, incoming: &'a Incoming) -> NewDeadLetter<'a> {
    NewDeadLetter {
        consumer: "billing",
        message: Some(message),
        incoming,
        error: "declined",
        attempts: 0,
    }
}

fn inbox_sql(db: &TestDb) -> InboxSql {
    let names = outbox_sea_orm::TableNames::default();
    InboxSql::new(db.db.get_database_backend(), &names, Duration::from_secs(3600))
}

fn attempts<'a>(db: &'a TestDb, sql: &'a InboxSql, message: &Message) -> Attempts<'a> {
    Attempts {
        sql,
        database: &db.database,
        consumer: "billing",
        event_id: message.event_id,
        attempts_max: 3,
        run_max: Duration::ZERO,
    }
}

fn claimant<'a>(sql: &'a InboxSql, message: &'a Message) -> Claimant<'a> {
    Claimant {
        sql,
        consumer: "billing",
        message,
        source: "shop",
        strategy: Strategy::Sequence { gap: None },
        id: message.event_id.as_uuid(),
    }
}

async fn applied_message_is_not_dead_lettered(db: TestDb) {
    let (sql, message, incoming) = (inbox_sql(&db), message(), incoming(1, b""));
    let (attempts, claimant) = (attempts(&db, &sql, &message), claimant(&sql, &message));
    assert_eq!(attempts.start().await.unwrap(), Ok(1));
    let other = db.database.begin().await.unwrap();
    let claim = claimant.claim(&other, false, Gaps::Wait).await.unwrap();
    assert_eq!(claim, crate::dedup::Outcome::Claimed);
    other.commit().await.unwrap();
    let failure = attempts
        .fail(
            Count::Counted(3),
            true,
            &letter(&message, &incoming),
            Some(&claimant),
        )
        .await
        .unwrap();
    assert_eq!(failure, Failure::Done);
    let row = sql.row(&db.db, attempts.key()).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Handled);
    let letters = Statement::from_string(sql.backend(), "SELECT id FROM inbox_dead_letters");
    assert!(db.db.query_all_raw(letters).await.unwrap().is_empty());
    db.close().await;
}

async fn start_in_other_process_does_not_hide_failure(db: TestDb) {
    let (sql, message, incoming) = (inbox_sql(&db), message(), incoming(1, b""));
    let first = attempts(&db, &sql, &message);
    let Some((pid, waiting)) = waiting_sessions(sql.backend()) else {
        return db.close().await;
    };
    let other = db.database.begin().await.unwrap();
    assert!(
        sql.insert(&other, first.key(), Status::Failed, 1, None)
            .await
            .unwrap()
    );
    let letter = letter(&message, &incoming);
    let fail = first.fail(Count::Add, false, &letter, None);
    let pid = other.query_one_raw(Statement::from_string(sql.backend(), pid));
    let pid: i64 = pid.await.unwrap().unwrap().try_get_by_index(0).unwrap();
    let waiting = Statement::from_string(sql.backend(), waiting.replace("{pid}", &pid.to_string()));
    let go_on = async {
        while db.db.query_all_raw(waiting.clone()).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        other.commit().await.unwrap();
    };
    let (failure, ()) = futures_util::future::join(fail, go_on).await;
    assert_eq!(failure.unwrap(), Failure::Retry { attempts: 2 });
    let row = sql.row(&db.db, first.key()).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Failed, 2));
    db.close().await;
}

fn waiting_sessions(backend: DbBackend) -> Option<(&'static str, &'static str)> {
    match backend {
        DbBackend::Postgres => Some((
            "SELECT pg_backend_pid()::int8",
            "SELECT pid FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))",
        )),
        DbBackend::MySql => Some((
            "SELECT CAST(connection_id() AS SIGNED)",
            "SELECT w.requesting_trx_id FROM information_schema.innodb_lock_waits w \
             JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id \
             WHERE t.trx_mysql_thread_id = {pid}",
        )),
        _ => None,
    }
}

on_every_database!(
    applied_message_is_not_dead_lettered,
    start_in_other_process_does_not_hide_failure,
);

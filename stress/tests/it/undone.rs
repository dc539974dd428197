//! A MariaDB server that rolls back the whole transaction after a write conflict (1020) or a lock
//! timeout (1205).
//!
//! Method: the test uses its own server. The caller and the handler ignore the error and continue.

use std::path::Path;

use outbox_core::{DomainEvent, NewMessage};
use outbox_inbox::testing::{Harness, Outcome};
use outbox_inbox::{Event, HandlerError, HandlerState, Metadata, Outbox, Tx, idempotent_handler};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, record};
use outbox_test_servers::Server;
use outbox_testing::backend_url;
use sea_orm::{ConnectionTrait, DatabaseConnection, Statement, TransactionTrait as _};
use serde::{Deserialize, Serialize};

const SETTINGS: [&str; 3] = [
    "--innodb-snapshot-isolation=ON",
    "--innodb-rollback-on-timeout=ON",
    "--innodb-lock-wait-timeout=1",
];

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "door", name = "opened")]
struct Opened {
    #[domain_event(aggregate_id)]
    door: i64,
}

async fn int(db: &DatabaseConnection, sql: &str) -> i64 {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

async fn stored(db: &DatabaseConnection) -> (i64, i64) {
    let changes = int(db, "SELECT count(*) FROM changes").await;
    (changes, int(db, "SELECT count(*) FROM outbox_messages").await)
}

async fn change(tx: &impl ConnectionTrait) -> bool {
    tx.execute_unprepared("INSERT INTO changes VALUES (1)")
        .await
        .is_ok()
}

async fn undo(tx: &impl ConnectionTrait, db: &DatabaseConnection, by_conflict: bool) {
    let read = "SELECT n FROM rooms WHERE id = 1";
    tx.execute_unprepared(read).await.unwrap();
    let other = db.begin().await.unwrap();
    let theirs = "UPDATE rooms SET n = n + 10 WHERE id = 1";
    other.execute_unprepared(theirs).await.unwrap();
    let other = if by_conflict {
        other.commit().await.unwrap();
        None
    } else {
        Some(other)
    };
    let ours = "UPDATE rooms SET n = 1 WHERE id = 1";
    tx.execute_unprepared(ours).await.unwrap_err();
    if let Some(other) = other {
        other.rollback().await.unwrap();
    }
}

#[idempotent_handler(consumer = "doors")]
async fn open(
    event: Event<Opened>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
    db: HandlerState<DatabaseConnection>,
    metadata: Metadata,
) -> Result<(), HandlerError> {
    assert!(change(&tx).await);
    let is_first = metadata.attempt() == 1;
    if is_first {
        undo(&tx, &db.0, false).await;
    }
    let later = change(&tx).await;
    let recorded = outbox.record([Opened { door: event.door }]).await;
    assert_eq!((later, recorded.is_ok()), (!is_first, !is_first));
    Ok(())
}

#[tokio::test]
async fn transaction_rolled_back_by_mariadb_is_never_stored_in_part() {
    let Some(program) = backend_url("OUTBOX_TEST_MARIADB_BIN") else {
        return;
    };
    let mut server = Server::mariadb(Path::new(&program), &SETTINGS).unwrap();
    server.start().await.unwrap();
    let db = server.connect(4).await.unwrap();
    outbox_sea_orm::migration::migrate(&db).await.unwrap();
    outbox_inbox::migrate(&db).await.unwrap();
    for sql in [
        "CREATE TABLE changes (n INT)",
        "CREATE TABLE rooms (id INT PRIMARY KEY, n INT)",
        "INSERT INTO rooms VALUES (1, 0)",
    ] {
        db.execute_unprepared(sql).await.unwrap();
    }
    let outbox = OutboxConnection::new(db.clone(), OutboxConfig::default());
    for by_conflict in [true, false] {
        let tx = outbox.begin().await.unwrap();
        record(&tx, [Opened { door: 1 }]).await.unwrap();
        undo(&tx, &db, by_conflict).await;
        assert!(!change(&tx).await);
        record(&tx, [Opened { door: 2 }]).await.unwrap_err();
        tx.commit().await.unwrap_err();

        let tx = db.begin().await.unwrap();
        record(&tx, [Opened { door: 1 }]).await.unwrap();
        undo(&tx, &db, by_conflict).await;
        record(&tx, [Opened { door: 2 }]).await.unwrap_err();
        assert!(!change(&tx).await);
        tx.commit().await.unwrap_err();
        assert_eq!(stored(&db).await, (0, 0), "{by_conflict}");
    }

    let harness = Harness::new(db.clone()).with_state(db.clone());
    let message = NewMessage::from_event(&Opened { door: 1 }).unwrap();
    let message = message.into_message(Some(1), time::OffsetDateTime::now_utc());
    let outcome = harness.deliver_message::<open>(&message).await.unwrap();
    assert_eq!((outcome, stored(&db).await), (Outcome::Failed, (0, 0)));
    let outcome = harness.redeliver_message::<open>(&message, 2).await.unwrap();
    assert_eq!((outcome, stored(&db).await), (Outcome::Handled, (2, 1)));
}

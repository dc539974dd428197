//! Commits refused by the database, and commits with an unknown outcome.

use outbox_core::Verdict;
use outbox_sea_orm::{OutboxConnection, RecordError, SaveError, SaveWithEvents, is_commit_refused, record};
use sea_orm::DbBackend;
use tracing::Instrument as _;

use crate::proxy::{Commit, Proxy};
use crate::shop::{CustomerGreeted, Shop, placed};
use crate::support::{Backend, TestDb};

async fn save(shop: &Shop, outbox: &OutboxConnection) -> SaveError {
    let save = shop.order(1).insert_with_events(outbox, |_| [placed(1)]);
    save.await.unwrap_err()
}

#[tokio::test]
async fn commit_refused_by_postgresql_has_a_known_outcome() {
    let Some(test) = TestDb::open(Backend::Postgres, "refused_commits").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let refuse = shop.test.names.table(DbBackend::Postgres, "refuse");
    let function = |code: &str| {
        let body = format!("BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END");
        format!("CREATE OR REPLACE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    };
    shop.test.execute(&function("P0001")).await;
    let at_commit = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW";
    let messages = shop.test.messages();
    shop.test
        .execute(&format!(
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {messages} {at_commit} EXECUTE FUNCTION {refuse}()"
        ))
        .await;
    let outbox = shop.test.outbox();
    for code in ["40001", "40P01", "23503", "23514", "23P01", "P0001"] {
        shop.test.execute(&function(code)).await;
        let error = save(&shop, &outbox).await;
        assert!(matches!(error, SaveError::Database(_)), "{code}: {error:?}");
        assert_eq!(error.is_retryable(), code.starts_with("40"), "{code}");
        let tx = outbox.begin().await.unwrap();
        record(&tx, [placed(1)]).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert!(is_commit_refused(&error), "{code}: {error:?}");
    }
    // Codes: connection lost behind a pooler; completion unknown on CockroachDB.
    for code in ["08006", "40003"] {
        shop.test.execute(&function(code)).await;
        let error = save(&shop, &outbox).await;
        assert!(matches!(error, SaveError::CommitUnknown(_)), "{code}: {error:?}");
    }
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

#[tokio::test]
async fn commit_refused_by_sqlite_has_a_known_outcome() {
    let Some(test) = TestDb::open(Backend::Sqlite, "refused_commits").await else {
        return;
    };
    let shop = Shop::open(test).await;
    for sql in [
        "CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE parents (id INTEGER PRIMARY KEY)",
        "CREATE TRIGGER orphan AFTER INSERT ON outbox_messages BEGIN INSERT INTO children VALUES (1); END",
    ] {
        shop.test.execute(sql).await;
    }
    let error = save(&shop, &shop.test.outbox()).await;
    assert!(matches!(error, SaveError::Database(_)), "{error:?}");
    shop.test.execute("DROP TRIGGER orphan").await;
    shop.order(1)
        .insert_with_events(&shop.test.outbox(), |_| [placed(1)])
        .await
        .unwrap();
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 1));
}

pub(crate) async fn behind_a_proxy(test: &TestDb) -> (Proxy, OutboxConnection) {
    let proxy = Proxy::in_front_of(test.url()).await;
    let plain = match test.sql_backend() {
        DbBackend::Postgres => "sslmode=disable",
        _ => "ssl-mode=DISABLED",
    };
    let pool = test
        .connect_through(&format!("{}?{plain}", proxy.url()), |_| {})
        .await;
    (proxy, OutboxConnection::new(pool, test.config()))
}

pub(crate) fn mysql_error(number: u16, state: &str, message: &str) -> Vec<u8> {
    let mut body = vec![0xff];
    body.extend(number.to_le_bytes());
    body.extend(format!("#{state}{message}").bytes());
    let mut packet = vec![u8::try_from(body.len()).unwrap(), 0, 0, 1];
    packet.extend(body);
    packet
}

#[tokio::test]
async fn commit_refused_by_galera_has_a_known_outcome() {
    let Some(test) = TestDb::open(Backend::MariaDb, "refused_commits").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let (proxy, outbox) = behind_a_proxy(&shop.test).await;
    let deadlock = mysql_error(
        1213,
        "40001",
        "Deadlock found when trying to get lock; try restarting transaction",
    );
    proxy.on_commit(Commit::Answer(deadlock));
    let error = save(&shop, &outbox).await;
    assert!(
        matches!(error, SaveError::Database(_)) && error.is_retryable(),
        "{error:?}"
    );
    proxy.on_commit(Commit::Answer(mysql_error(1180, "HY000", "Got error 6")));
    let error = save(&shop, &outbox).await;
    assert!(matches!(error, SaveError::CommitUnknown(_)), "{error:?}");
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (0, 0));
}

/// The relay publishes the event and deletes its row. The deduplication key still rejects the
/// repeated save.
async fn check_lost_answer(backend: Backend) {
    let Some(test) = TestDb::open(backend, "lost_answer").await else {
        return;
    };
    let shop = Shop::open(test).await;
    let (proxy, outbox) = behind_a_proxy(&shop.test).await;
    let greeted = || CustomerGreeted {
        customer: "a".to_owned(),
        greeting: "hello".to_owned(),
    };
    proxy.on_commit(Commit::LoseAnswer);
    let lost = shop
        .order(1)
        .insert_with_events(&outbox, move |_| [greeted()])
        .await;
    assert!(matches!(lost, Err(SaveError::CommitUnknown(_))), "{lost:?}");

    let (_, leases) = shop.test.lease_all().await;
    let rows = shop.test.fetch_all().await;
    assert_eq!(rows.len(), 1);
    let published = Verdict::Published { keep: false };
    assert_eq!(shop.test.settle(&leases, &rows, published).await, 1);

    let again = shop
        .order(1)
        .insert_with_events(&outbox, move |_| [greeted()])
        .await;
    assert!(
        matches!(again, Err(SaveError::Record(RecordError::DuplicateKey { .. }))),
        "{again:?}"
    );
    assert_eq!((shop.orders().await, shop.recorded().await.len()), (1, 0));
}

#[tokio::test]
async fn dedup_key_finds_a_save_with_a_lost_answer_on_postgresql() {
    check_lost_answer(Backend::Postgres).await;
}

#[tokio::test]
async fn dedup_key_finds_a_save_with_a_lost_answer_on_mariadb() {
    check_lost_answer(Backend::MariaDb).await;
}

#[tokio::test]
async fn save_runs_in_the_span_of_its_caller() {
    let Some(test) = TestDb::open(Backend::SqliteMemory, "span").await else {
        return;
    };
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry());
    let shop = Shop::open(test).await;
    let outbox = shop.test.outbox();
    let save = shop.order(1).insert_with_events(&outbox, |_| {
        assert_eq!(
            tracing::Span::current().metadata().map(|span| span.name()),
            Some("request")
        );
        [placed(1)]
    });
    save.instrument(tracing::info_span!("request")).await.unwrap();
}

#[tokio::test]
async fn error_text_names_the_next_step() {
    for backend in [Backend::Sqlite, Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::empty(backend, "text").await else {
            continue;
        };
        let error = test.record([placed(1)]).await.unwrap_err();
        assert!(error.to_string().contains("migration"), "{backend:?}: {error}");
        assert!(!error.is_retryable());
    }
}

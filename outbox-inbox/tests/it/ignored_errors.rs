//! Handlers that ignore a rolled back transaction or a refused event.

use std::time::Duration;

use outbox_core::DomainEvent;
use outbox_inbox::testing::Outcome;
use outbox_inbox::{Event, HandlerError, HandlerState, Metadata, Outbox, Tx, idempotent_handler};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};

use crate::on_every_backend;
use crate::support::{Backend, OrderBooked, OrderPlaced, Script, TestDb, message, placed};

async fn effect(tx: &Tx<'_>, order_id: u64) -> Result<(), HandlerError> {
    let sql =
        format!("INSERT INTO effects (consumer, order_id, stable_key) VALUES ('undone', {order_id}, '')");
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

#[derive(Clone)]
struct Elsewhere(DatabaseConnection);

async fn undo(tx: &Tx<'_>, elsewhere: &Elsewhere) {
    let Elsewhere(db) = elsewhere;
    let ours = "UPDATE locks SET n = 1 WHERE id = 1";
    if tx.get_database_backend() == DbBackend::Sqlite {
        tx.execute_unprepared(ours).await.unwrap_err();
        return;
    }
    let other = db.begin().await.unwrap();
    other
        .execute_unprepared("INSERT INTO locks SELECT seq, 0 FROM seq_100_to_400")
        .await
        .unwrap();
    let theirs = "UPDATE locks SET n = 2 WHERE id = 2";
    other.execute_unprepared(theirs).await.unwrap();
    tx.execute_unprepared(ours).await.unwrap();
    let waiting = tokio::spawn(async move {
        let waited = other
            .execute_unprepared("UPDATE locks SET n = 2 WHERE id = 1")
            .await;
        other.rollback().await.unwrap();
        waited.unwrap();
    });
    let waits = "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
                 ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
    while crate::support::int(db, waits).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let deadlock = tx.execute_unprepared("UPDATE locks SET n = 1 WHERE id = 2").await;
    deadlock.unwrap_err();
    waiting.await.unwrap();
}

#[idempotent_handler(consumer = "undone")]
async fn go_on(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
    elsewhere: HandlerState<Elsewhere>,
    metadata: Metadata,
) -> Result<(), HandlerError> {
    effect(&tx, event.order_id).await?;
    if metadata.attempt() == 1 {
        undo(&tx, &elsewhere.0).await;
    }
    let later = effect(&tx, event.order_id).await.is_ok();
    let recorded = outbox
        .record([OrderBooked {
            order_id: event.order_id,
        }])
        .await
        .is_ok();
    assert_eq!(
        (later, recorded),
        (metadata.attempt() > 1, metadata.attempt() > 1)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_in_an_undone_transaction_leaves_nothing() {
    for backend in [Backend::Sqlite, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "undone").await else {
            continue;
        };
        test.execute("CREATE TABLE locks (id INTEGER PRIMARY KEY, n INTEGER)")
            .await;
        test.execute("INSERT INTO locks VALUES (1, 0), (2, 0)").await;
        if backend == Backend::Sqlite {
            test.execute(
                "CREATE TRIGGER undo BEFORE UPDATE ON locks BEGIN SELECT RAISE(ROLLBACK, 'undone'); END",
            )
            .await;
        }
        let harness = test
            .harness(&Script::ok())
            .with_state(Elsewhere(test.connect_again().await));
        let message = message(&placed(1));
        let outcome = harness.deliver_message::<go_on>(&message).await.unwrap();
        assert_eq!(outcome, Outcome::Failed, "{backend:?}");
        assert_eq!(
            (test.effects("undone", 1).await, test.follow_ups().await),
            (0, 0),
            "{backend:?}"
        );
        assert_eq!(test.row().await, Some((0, 1)), "{backend:?}");
        let outcome = harness.redeliver_message::<go_on>(&message, 2).await.unwrap();
        assert_eq!(outcome, Outcome::Handled, "{backend:?}");
        assert_eq!(
            (test.effects("undone", 1).await, test.follow_ups().await),
            (2, 1),
            "{backend:?}"
        );
    }
}

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "labelled")]
struct OrderLabelled {
    #[domain_event(aggregate_id)]
    label: &'static str,
}

#[idempotent_handler(consumer = "undone")]
async fn ignore_refusal(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
) -> Result<(), HandlerError> {
    effect(&tx, event.order_id).await?;
    outbox.record([OrderLabelled { label: "" }]).await.unwrap_err();
    Ok(())
}

async fn ignored_invalid_event_fails_the_handler(test: TestDb) {
    let harness = test.harness(&Script::ok());
    let outcome = harness
        .deliver_message::<ignore_refusal>(&message(&placed(1)))
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Failed);
    assert_eq!(test.effects("undone", 1).await, 0);
    assert_eq!(test.row().await, Some((0, 1)));
}

fn quoting(backend: DbBackend) -> Vec<(&'static str, bool)> {
    match backend {
        DbBackend::Postgres => vec![
            ("INSERT INTO people (email) VALUES ('CANARY'), ('CANARY')", true),
            ("SELECT 'CANARY'::INTEGER", false),
            ("SELECT 'CANARY'::DATE", false),
            ("SELECT 'CANARY'::JSONB", false),
            ("SELECT '99999999999CANARY'::SMALLINT", false),
            ("SELECT 'CANARY'::NUMERIC", false),
            ("SELECT 'CANARY'::DOUBLE PRECISION", false),
            ("SELECT 'CANARY'::BOOLEAN", false),
            ("SELECT 'CANARY'::UUID", false),
            ("SELECT 'CANARY'::TIMESTAMPTZ", false),
            ("SELECT 'CANARY'::INTERVAL", false),
            ("SELECT 'CANARY'::INET", false),
            ("SELECT 'CANARY'::INTEGER[]", false),
            ("SELECT 'CANARY'::INT4RANGE", false),
            ("SELECT 'CANARY'::REGCLASS", false),
            ("SELECT 'CANARY'::mood", false),
            ("SELECT to_date('CANARY', 'YYYY')", false),
            ("INSERT INTO people (email) VALUES (repeat('CANARY', 10))", false),
            ("INSERT INTO people (email, age) VALUES ('CANARY', -1)", true),
            ("INSERT INTO people (email, born) VALUES ('CANARY', NULL)", true),
            ("INSERT INTO people (email, boss) VALUES ('b', 'CANARY')", true),
            (
                "INSERT INTO people (email, note) VALUES ('c', 'CANARY'), ('d', 'CANARY')",
                true,
            ),
            ("DO $$ BEGIN RAISE EXCEPTION 'CANARY'; END $$", false),
            (
                "DO $$ BEGIN RAISE EXCEPTION USING HINT = 'CANARY', MESSAGE = 'no'; END $$",
                false,
            ),
            ("DO $$ BEGIN EXECUTE 'SELECT ''CANARY''::INTEGER'; END $$", false),
            ("CANARY", false),
        ],
        DbBackend::MySql => vec![
            ("INSERT INTO people (email) VALUES ('CANARY'), ('CANARY')", true),
            ("INSERT INTO people (email, age) VALUES ('a', 'CANARY')", false),
            ("INSERT INTO people (email, born) VALUES ('a', 'CANARY')", false),
            ("UPDATE people SET age = 'CANARY' + 1", false),
            ("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'CANARY'", false),
            ("CANARY", false),
        ],
        _ => vec![("INSERT INTO people (email) VALUES ('CANARY'), ('CANARY')", true)],
    }
}

#[idempotent_handler(consumer = "quoting", attempts = 1)]
async fn quote(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    panics: HandlerState<bool>,
) -> Result<(), HandlerError> {
    if tx.get_database_backend() == DbBackend::MySql {
        tx.execute_unprepared("SET SESSION lc_messages = 'de_DE'").await?;
    }
    let (sql, _) = quoting(tx.get_database_backend())[event.order_id as usize];
    let result = tx.execute_unprepared(sql).await;
    if *panics {
        result.unwrap();
    } else {
        result?;
    }
    Ok(())
}

async fn errors_of_databases_do_not_quote_values(test: TestDb) {
    test.execute("CREATE TABLE people (email VARCHAR(40), age INTEGER, born DATE)")
        .await;
    test.execute("CREATE UNIQUE INDEX people_email ON people (email)")
        .await;
    test.execute("INSERT INTO people VALUES ('x', 1, NULL)").await;
    if test.sql_backend() == DbBackend::Postgres {
        test.execute("CREATE TYPE mood AS ENUM ('well')").await;
        test.execute(
            "ALTER TABLE people ADD CHECK (age >= 0), ALTER COLUMN born SET DEFAULT now(), ADD CHECK (born IS NOT NULL) NOT VALID, \
             ADD COLUMN boss VARCHAR(40) REFERENCES people (email), ADD COLUMN note TEXT, ADD EXCLUDE (note WITH =)",
        )
        .await;
    }
    let statements = quoting(test.sql_backend());
    for (panics, (n, (sql, is_named))) in [false, true]
        .into_iter()
        .flat_map(|panics| statements.iter().enumerate().map(move |row| (panics, row)))
    {
        test.execute("DELETE FROM inbox_messages").await;
        let harness = test.harness(&Script::ok()).with_state(panics);
        let outcome = harness
            .deliver_message::<quote>(&message(&placed(n as u64)))
            .await;
        assert_eq!(outcome.unwrap(), Outcome::DeadLettered, "{sql}");
        let last = Statement::from_string(test.sql_backend(), "SELECT last_error FROM inbox_messages");
        let row = test.db.query_one_raw(last).await.unwrap().unwrap();
        let error: String = row.try_get_by_index(0).unwrap();
        assert!(!error.contains("CANARY"), "{sql}: {error}");
        assert_eq!(error.contains("panicked"), panics, "{sql}: {error}");
        if !panics {
            assert_eq!(error.contains("people"), *is_named, "{sql}: {error}");
        }
    }
}

#[idempotent_handler(consumer = "elsewhere", attempts = 2)]
async fn write_elsewhere(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    elsewhere: HandlerState<Elsewhere>,
) -> Result<(), HandlerError> {
    effect(&tx, event.order_id).await?;
    let sql = "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('elsewhere', 1, '')";
    elsewhere.0.0.execute_unprepared(sql).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_over_another_connection_ends_as_a_dead_letter() {
    let test = TestDb::open(Backend::Sqlite, "elsewhere").await.unwrap();
    let elsewhere = test.connect_with(|options| {
        options.map_sqlx_sqlite_opts(|options| options.busy_timeout(Duration::from_millis(20)));
    });
    let elsewhere = Elsewhere(elsewhere.await);
    let broker = outbox_testing::MemoryBroker::new();
    crate::support::publish(&broker, &placed(1)).await;
    let router = outbox_inbox::Router::new().handler::<write_elsewhere>();
    let inbox = test.inbox(&broker, router).with_state(elsewhere);
    let report = crate::runtime::within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (0, 1), "{report:?}");
    let letters = outbox_inbox::testing::dead_letters(&test.db, "elsewhere")
        .await
        .unwrap();
    assert_eq!(letters[0].attempts, 2);
    assert!(
        letters[0].error.contains("another connection"),
        "{}",
        letters[0].error
    );
    let all = "SELECT count(*) FROM effects";
    assert_eq!(test.int(all).await, 0);
}

on_every_backend!(
    ignored_invalid_event_fails_the_handler,
    errors_of_databases_do_not_quote_values,
);

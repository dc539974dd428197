//! Unusual settings of servers and sessions, and functions and operators with the names of built-in
//! ones.

use std::path::Path;

use outbox_inbox::{InboxError, Router};
use outbox_test_servers::planted::{Called, marks};
use outbox_test_servers::{Rerun, Server};
use outbox_testing::{MemoryBroker, backend_url};
use sea_orm::ConnectionTrait as _;

use crate::support::{Backend, Script, Step, TestDb, book};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_functions_and_operators_are_not_called() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let settings = [
        "log_statement=all",
        "log_line_prefix=@",
        "log_parameter_max_length=0",
        "max_connections=300",
    ];
    let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    let run = |database: &str, search_path: &str| {
        let tests = [
            "strategies::postgres",
            "http::",
            "dead_letter::postgres",
            "batch::postgres",
            "pause::postgres",
        ];
        Rerun::of(&tests)
            .without(&["sqlite", "mariadb"])
            .with("OUTBOX_TEST_POSTGRES_URL", &server.url_of(database))
            .with("OUTBOX_TEST_SEARCH_PATH", search_path)
            .run()
    };
    run("postgres", "").await.unwrap();
    let called = Called::in_log(&server.log());
    assert!(
        called.functions.contains(&("clock_timestamp".to_owned(), 0)),
        "{called:?}"
    );

    db.execute_unprepared("CREATE DATABASE planted").await.unwrap();
    let planted = server.connect_to("planted", 1).await.unwrap();
    planted.execute_unprepared("CREATE SCHEMA first").await.unwrap();
    planted.execute_unprepared(&called.plant("first")).await.unwrap();
    let begins = server.log().len();
    let passed = run("planted", ",first").await;
    let marks = marks(&server.log()[begins..]);
    assert!(marks.is_empty(), "{}", marks.join("\n"));
    passed.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_defaults_of_a_mariadb_have_no_effect() {
    let Some(program) = backend_url("OUTBOX_TEST_MARIADB_BIN") else {
        return;
    };
    let settings = [
        "--innodb-default-row-format=compact",
        "--default-storage-engine=MyISAM",
        "--explicit-defaults-for-timestamp=0",
        "--default-time-zone=+05:30",
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE",
        "--max-connections=300",
    ];
    let mut server = Server::mariadb(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    server.connect(1).await.unwrap().close().await.unwrap();
    let rerun = Rerun::of(&[
        "migration::mariadb",
        "strategies::mariadb::",
        "dead_letter::mariadb",
    ]);
    rerun
        .with("OUTBOX_TEST_MARIADB_URL", server.url())
        .run()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn german_server_messages_make_no_difference() {
    let (Some(program), Some(localedef)) = (
        backend_url("OUTBOX_TEST_POSTGRES_BIN"),
        backend_url("OUTBOX_TEST_LOCALEDEF_BIN"),
    ) else {
        return;
    };
    let server = Server::postgres(Path::new(&program), &["max_connections=300"]).unwrap();
    let mut server = server.in_german(Path::new(&localedef)).unwrap();
    server.start().await.unwrap();
    server.connect(1).await.unwrap().close().await.unwrap();
    let tests = [
        "ignored_errors::postgres",
        "failure::postgres",
        "strategies::postgres",
    ];
    let rerun = Rerun::of(&tests).with("OUTBOX_TEST_POSTGRES_URL", server.url());
    rerun.run().await.unwrap();
    assert!(
        server.log().contains("FEHLER:  doppelter Schlüsselwert"),
        "English"
    );
}

/// The inbox shares its sessions with the handlers, so it cannot change session settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfit_settings_are_refused_by_name() {
    let mariadb: [(&str, &[&str]); 6] = [
        ("autocommit", &["SET SESSION autocommit = 0"]),
        ("completion_type", &["SET SESSION completion_type = 'CHAIN'"]),
        ("sql_select_limit", &["SET SESSION sql_select_limit = 1"]),
        ("sql_safe_updates", &["SET SESSION sql_safe_updates = 1"]),
        ("unique_checks", &["SET SESSION unique_checks = 0"]),
        (
            "sql_mode",
            &["SET SESSION sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL')"],
        ),
    ];
    for (name, statements) in mariadb {
        refused(Backend::MariaDb, name, statements).await;
    }
    let late: &[&str] = &["SELECT set_config('search_path', current_schema() || ', pg_catalog', false)"];
    refused(Backend::Postgres, "search_path", late).await;
}

async fn refused(backend: Backend, name: &str, statements: &'static [&'static str]) {
    let Some(test) = TestDb::open_with(backend, name, statements).await else {
        return;
    };
    let error = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .with_state(Script::new([], Step::Ok))
        .drain()
        .await
        .unwrap_err();
    let InboxError::Start(error) = error else {
        panic!("{name}: {error:?}");
    };
    let [problem] = error.problems() else {
        panic!("{name}: {error:?}");
    };
    assert!(problem.to_string().contains(name), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printed_pause_uses_utc() {
    let page = include_str!("../../../docs/operations.md");
    for (backend, label, zone, hours) in [
        (
            Backend::Postgres,
            "-- PostgreSQL",
            &["SET TimeZone = 'Asia/Kolkata'"][..],
            "SELECT (abs(extract(epoch FROM clock_timestamp() - paused_at)) / 3600)::int8 FROM inbox_pauses",
        ),
        (
            Backend::MariaDb,
            "-- MySQL, MariaDB",
            &["SET SESSION time_zone = '+05:30'"],
            "SELECT ABS(TIMESTAMPDIFF(HOUR, paused_at, UTC_TIMESTAMP())) FROM inbox_pauses",
        ),
        (
            Backend::Sqlite,
            "-- SQLite",
            &[],
            "SELECT abs(strftime('%s', 'now') - paused_at / 1000000) / 3600 FROM inbox_pauses",
        ),
    ] {
        let Some(test) = TestDb::open_with(backend, "pause", zone).await else {
            continue;
        };
        let printed = page
            .lines()
            .find(|line| line.starts_with("INSERT INTO inbox_pauses") && line.ends_with(label))
            .unwrap();
        test.execute(printed.split_once("--").unwrap().0).await;
        assert_eq!(test.int(hours).await, 0, "{backend:?}");
    }
}

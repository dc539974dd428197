//! Functions and operators of other schemas do not take the place of PostgreSQL's own in the
//! statements of the commands.

use std::collections::BTreeSet;
use std::path::Path;

use outbox::testing::backend_url;
use outbox_test_servers::planted::{Called, marks};
use outbox_test_servers::{Rerun, Server};
use sea_orm::ConnectionTrait as _;

/// Tests of commands that read or write the database.
const TESTS: [&str; 8] = [
    "operate::doctor::database",
    "operate::doctor::restore",
    "operate::forget",
    "operate::handed",
    "operate::lists",
    "operate::prove",
    "operate::reconcile",
    "operate::timeline",
];

/// A test whose own statement calls a planted function.
const OWN: &str = "a_slot_that_nobody_reads_is_found";

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
        "max_prepared_transactions=10",
        "wal_level=logical",
    ];
    let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    let run = |database: &str| {
        Rerun::of(&TESTS)
            .without(&["sqlite", "mariadb", OWN])
            .with("OUTBOX_TEST_POSTGRES_URL", &server.url_of(database))
            .run()
    };
    run("postgres").await.unwrap();
    let called = Called::in_log(&server.log());
    let slots = ("pg_wal_lsn_diff".to_owned(), 2);
    assert!(called.functions.contains(&slots), "{called:?}");

    db.execute_unprepared("CREATE DATABASE planted").await.unwrap();
    db.execute_unprepared("ALTER DATABASE planted SET search_path = first, public")
        .await
        .unwrap();
    let planted = server.connect_to("planted", 1).await.unwrap();
    planted.execute_unprepared("CREATE SCHEMA first").await.unwrap();
    planted.execute_unprepared(&called.plant("first")).await.unwrap();
    let begins = server.log().len();
    let passed = run("planted").await;
    let marks: Vec<String> = BTreeSet::from_iter(marks(&server.log()[begins..]))
        .into_iter()
        .collect();
    assert!(marks.is_empty(), "{}", marks.join("\n"));
    passed.unwrap();
}

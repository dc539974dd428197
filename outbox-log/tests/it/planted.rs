//! The log calls PostgreSQL's own functions and operators, not overloads in other schemas.

use std::path::Path;

use outbox_test_servers::planted::{Called, marks};
use outbox_test_servers::{Rerun, Server};
use outbox_testing::backend_url;
use sea_orm::ConnectionTrait as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_functions_and_operators_are_not_called() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let settings = [
        "wal_level=logical",
        "max_replication_slots=100",
        "max_wal_senders=100",
        "log_statement=all",
        "log_line_prefix=@",
        "log_parameter_max_length=0",
        "max_connections=300",
    ];
    let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    let run = |database: &str, search_path: &str| {
        Rerun::of(&["conformance::", "reading::", "set_up::", "unclaimed::"])
            .with("OUTBOX_TEST_POSTGRES_LOGICAL_URL", &server.url_of(database))
            .with("OUTBOX_TEST_SEARCH_PATH", search_path)
            .run()
    };
    run("postgres", "").await.unwrap();
    let called = Called::in_log(&server.log());
    let asked = ("pg_current_snapshot".to_owned(), 0);
    assert!(called.functions.contains(&asked), "{called:?}");

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

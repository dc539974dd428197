//! Functions and operators of other schemas must not replace PostgreSQL's own.

use std::path::Path;

use outbox_test_servers::planted::{Called, MARK, marks};
use outbox_test_servers::{Rerun, Server};
use outbox_testing::backend_url;
use sea_orm::ConnectionTrait as _;

const TESTS: [&str; 6] = [
    "store::conformance::postgres",
    "audit::postgres",
    "insert::postgres",
    "operators::postgres",
    "relays::postgres",
    "writers::postgres",
];

const OWN: [&str; 6] = [
    "killed_replay_continues_without_second_copies",
    "overlapping_batches_do_not_deadlock",
    "refused_call_leaves_no_sequence_gap",
    "sql_and_rust_record_equal_messages",
    "limits_raised_in_rust_need_an_edit_in_sql",
    "sql_and_rust_writers_share_the_sequences",
];

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
    let run = |database: &str| {
        let url = server.url_of(database);
        Rerun::of(&TESTS)
            .without(&OWN)
            .with("OUTBOX_TEST_POSTGRES_URL", &url)
            .run()
    };
    run("postgres").await.unwrap();
    let called = Called::in_log(&server.log());
    let convert = ("convert_to".to_owned(), 2);
    assert!(called.functions.contains(&convert), "{called:?}");
    assert!(called.operators.len() > 10, "{called:?}");

    db.execute_unprepared("CREATE DATABASE planted").await.unwrap();
    db.execute_unprepared("ALTER DATABASE planted SET search_path = first, public")
        .await
        .unwrap();
    let planted = server.connect_to("planted", 1).await.unwrap();
    planted.execute_unprepared("CREATE SCHEMA first").await.unwrap();
    for schema in ["first", "public"] {
        planted.execute_unprepared(&called.plant(schema)).await.unwrap();
    }
    let begins = server.log().len();
    let call = "SELECT convert_to('text'::text, 'UTF8')";
    assert!(planted.execute_unprepared(call).await.is_err());
    assert!(server.log()[begins..].contains(MARK));

    let begins = server.log().len();
    let passed = run("planted").await;
    let log = server.log();
    let marks = marks(&log[begins..]);
    assert!(marks.is_empty(), "{}", marks.join("\n"));
    passed.unwrap();
}

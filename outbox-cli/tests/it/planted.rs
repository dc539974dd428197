//! Statements of commands never call functions or operators of foreign schemas.
//!
//! The test creates every function and operator of `golden/called.txt` in a foreign schema; the
//! server log then shows whether the list is complete. `OUTBOX_BLESS=1` extends the list.

use std::collections::BTreeSet;
use std::path::Path;

use outbox::testing::backend_url;
use outbox_test_servers::planted::{Called, marks};
use outbox_test_servers::{Rerun, Server};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement};

const TESTS: [&str; 10] = [
    "operate::doctor::database",
    "operate::doctor::restore",
    "operate::forget",
    "operate::lists",
    "operate::prove",
    "operate::reconcile",
    "operate::rights::a_viewer_reads",
    "operate::rights::each_role_may_do",
    "operate::rights::the_printed_rights",
    "operate::timeline",
];

const CALLED: &str = include_str!("../golden/called.txt");

fn parsed(list: &str) -> Called {
    let mut called = Called::default();
    for line in list.lines() {
        match line.split_once(' ') {
            Some((name, arguments)) => {
                let arguments = arguments.parse().unwrap();
                called.functions.insert((name.to_owned(), arguments));
            }
            None => {
                called.operators.insert(line.to_owned());
            }
        }
    }
    called
}

fn listed(called: &Called) -> BTreeSet<String> {
    let functions = called.functions.iter();
    let functions = functions.map(|(name, arguments)| format!("{name} {arguments}"));
    called.operators.iter().cloned().chain(functions).collect()
}

/// Called functions and operators: other words before a bracket are tables or keywords.
async fn called(log: &str, db: &DatabaseConnection) -> Called {
    let names = "SELECT DISTINCT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace";
    let names = Statement::from_string(DbBackend::Postgres, names);
    let names = db.query_all_raw(names).await.unwrap();
    let names: BTreeSet<String> = names.iter().map(|row| row.try_get_by_index(0).unwrap()).collect();
    let mut called = Called::in_log(log);
    called.functions.retain(|(name, _)| names.contains(name));
    called
}

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
        "wal_level=logical",
    ];
    let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    db.execute_unprepared("CREATE DATABASE planted").await.unwrap();
    db.execute_unprepared("ALTER DATABASE planted SET search_path = first, public")
        .await
        .unwrap();
    let planted = server.connect_to("planted", 1).await.unwrap();
    planted.execute_unprepared("CREATE SCHEMA first").await.unwrap();
    let list = parsed(CALLED);
    planted.execute_unprepared(&list.plant("first")).await.unwrap();
    let begins = server.log().len();
    let passed = Rerun::of(&TESTS)
        .without(&["sqlite", "mariadb"])
        .with("OUTBOX_TEST_POSTGRES_URL", &server.url_of("planted"))
        .run()
        .await;
    let log = server.log();
    let marks: BTreeSet<String> = marks(&log[begins..]).into_iter().collect();
    let marks: Vec<String> = marks.into_iter().collect();
    assert!(marks.is_empty(), "{}", marks.join("\n"));
    passed.unwrap();
    let (seen, mut known) = (listed(&called(&log[begins..], &db).await), listed(&list));
    if std::env::var_os("OUTBOX_BLESS").is_some() {
        known.extend(seen.iter().cloned());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/called.txt");
        let lines: Vec<String> = known.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(file, lines.concat()).unwrap();
    }
    let unknown: Vec<&String> = seen.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "not planted: {unknown:?}; OUTBOX_BLESS=1 adds them to the list"
    );
}

//! The log with unusual database settings.

use std::path::Path;

use outbox_test_servers::{Rerun, Server};
use outbox_testing::backend_url;
use sea_orm::ConnectionTrait as _;

const SETTINGS: [&str; 15] = [
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = sql_standard",
    "TimeZone = 'Asia/Kolkata'",
    "bytea_output = escape",
    "extra_float_digits = -15",
    "transform_null_equals = on",
    "quote_all_identifiers = on",
    "array_nulls = off",
    "xmloption = document",
    "row_security = off",
    "plan_cache_mode = force_generic_plan",
    "enable_indexscan = off",
    "force_parallel_mode = on",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_defaults_of_a_postgres_have_no_effect() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let settings = [
        "wal_level=logical",
        "max_replication_slots=100",
        "max_wal_senders=100",
        "max_connections=300",
    ];
    let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    db.execute_unprepared("CREATE DATABASE odd").await.unwrap();
    for setting in SETTINGS {
        let set = format!("ALTER DATABASE odd SET {setting}");
        db.execute_unprepared(&set).await.unwrap();
    }
    Rerun::of(&["conformance::", "reading::"])
        .with("OUTBOX_TEST_POSTGRES_LOGICAL_URL", &server.url_of("odd"))
        .run()
        .await
        .unwrap();
}

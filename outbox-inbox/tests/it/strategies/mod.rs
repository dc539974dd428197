//! One suite for every strategy: duplicate, concurrent duplicate, crash, reorder, poison.
//!
//! [`Traits`] names the differences between the strategies. The suite must find planted mistakes.

mod handlers;
mod mistakes;
mod suite;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use handlers::{
    Traits, note_by_constraint, note_by_external, note_by_key, note_by_message_id, note_by_sequence,
    note_naturally,
};

use mistakes::Mistake;

use crate::on_every_backend;
use crate::rights::Login;
use crate::support::{Backend, SOON, TestDb};

type Suite = fn(TestDb) -> BoxFuture<'static, ()>;

async fn message_id(test: TestDb) {
    suite::run::<note_by_message_id>(&test, Traits::new("message_id")).await;
}

async fn sequence(test: TestDb) {
    suite::run::<note_by_sequence>(
        &test,
        Traits {
            ordered: true,
            ..Traits::new("sequence")
        },
    )
    .await;
}

async fn natural(test: TestDb) {
    suite::run::<note_naturally>(&test, Traits::new("natural")).await;
}

async fn key(test: TestDb) {
    suite::run::<note_by_key>(
        &test,
        Traits {
            by_key: true,
            ..Traits::new("key")
        },
    )
    .await;
}

async fn constraint(test: TestDb) {
    suite::run::<note_by_constraint>(&test, Traits::new("constraint")).await;
}

async fn store(test: TestDb) {
    suite::run::<note_by_external>(
        &test,
        Traits {
            leased: true,
            ..Traits::new("store")
        },
    )
    .await;
}

on_every_backend!(without memory: message_id, sequence, natural, key, constraint, store);

const SUITES: [(&str, Suite); 6] = [
    ("message_id", |test| message_id(test).boxed()),
    ("sequence", |test| sequence(test).boxed()),
    ("key", |test| key(test).boxed()),
    ("constraint", |test| constraint(test).boxed()),
    ("natural", |test| natural(test).boxed()),
    ("store", |test| store(test).boxed()),
];

async fn run_each(suites: &[(&'static str, Suite)], open: impl AsyncFn(&'static str) -> Option<TestDb>) {
    for (name, suite) in suites {
        let Some(test) = open(name).await else {
            return;
        };
        tokio::time::timeout(SOON * 2, suite(test))
            .await
            .expect("the suite ends in time");
    }
}

async fn at_isolation(backend: Backend, level: &'static str) {
    run_each(&SUITES[..4], async |name| {
        TestDb::open_at(backend, name, level).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_at_repeatable_read() {
    at_isolation(Backend::Postgres, "REPEATABLE READ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_at_serializable() {
    at_isolation(Backend::Postgres, "SERIALIZABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_at_repeatable_read() {
    at_isolation(Backend::MariaDb, "REPEATABLE READ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_at_serializable() {
    at_isolation(Backend::MariaDb, "SERIALIZABLE").await;
}

const ODD_POSTGRES: &[&str] = &[
    "SET standard_conforming_strings = off; SET backslash_quote = off; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard; \
     SET TimeZone = 'Asia/Kolkata'; SET bytea_output = escape; SET extra_float_digits = -15; SET transform_null_equals = on; \
     SET quote_all_identifiers = on; SET array_nulls = off; SET default_transaction_deferrable = on; SET session_replication_role = replica; \
     SET lock_timeout = '30s'; SET statement_timeout = '60s'; SET plan_cache_mode = force_generic_plan; SET enable_indexscan = off; \
     SET enable_nestloop = off; SET force_parallel_mode = on",
];

const ODD_MARIADB: &[&str] = &[
    "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,\
     NO_UNSIGNED_SUBTRACTION,ONLY_FULL_GROUP_BY,STRICT_ALL_TABLES,IGNORE_SPACE,NO_AUTO_VALUE_ON_ZERO,TIME_ROUND_FRACTIONAL,REAL_AS_FLOAT', \
     time_zone = '+05:30', div_precision_increment = 0, group_concat_max_len = 4, sql_auto_is_null = 1, big_tables = 1, \
     auto_increment_increment = 7, auto_increment_offset = 3, collation_connection = utf8mb4_general_ci, foreign_key_checks = 0",
];

async fn with_odd_sessions(backend: Backend, statements: &'static [&'static str]) {
    run_each(&SUITES, async |name| {
        TestDb::open_with(backend, name, statements).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_odd_sessions() {
    with_odd_sessions(Backend::Postgres, ODD_POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_with_odd_sessions() {
    with_odd_sessions(Backend::MariaDb, ODD_MARIADB).await;
}

static CONSUMER: Login = Login {
    name: "outbox_test_consumer",
    roles: &["consumer"],
    own: &["INSERT ON effects", "INSERT ON markers"],
};

async fn with_the_documented_rights(backend: Backend) {
    run_each(&SUITES, async |name| {
        TestDb::open_for(backend, name, &CONSUMER).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strategies_need_only_documented_rights_on_postgres() {
    with_the_documented_rights(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strategies_need_only_documented_rights_on_mariadb() {
    with_the_documented_rights(Backend::MariaDb).await;
}

async fn assert_found(mistake: Mistake, says: &str) {
    let test = TestDb::open(Backend::Sqlite, "mistake").await.unwrap();
    let failure = suite::failure(&test, mistake).await;
    let is_found = failure.as_ref().is_some_and(|failure| failure.contains(says));
    assert!(is_found, "{mistake:?} is not found: {failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_finds_check_before_act() {
    assert_found(Mistake::ChecksThenActs, "has one effect").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_finds_early_acknowledgement() {
    assert_found(Mistake::AcknowledgesFirst, "the crash left no effect").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_finds_key_without_consumer() {
    assert_found(Mistake::ForgetsConsumer, "the other consumer handled it").await;
}

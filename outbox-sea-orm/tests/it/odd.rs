//! The guarantees of `SqlStore` with unusual server and session settings.

use std::path::Path;

use outbox_core::{OutboxStore as _, StoreError};
use outbox_sea_orm::{OutboxConnection, SqlStore};
use outbox_test_servers::{Rerun, Server};
use outbox_testing::backend_url;
use sea_orm::sqlx::{AssertSqlSafe, Executor as _};
use sea_orm::{ConnectOptions, DatabaseConnection};

use crate::store::Fixture;
use crate::support::{Backend, TestDb};

const POSTGRES: &str = "SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = off; \
     SET DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard; SET TimeZone = 'Asia/Kolkata'; SET bytea_output = escape; \
     SET extra_float_digits = -15; SET transform_null_equals = on; SET quote_all_identifiers = on; SET array_nulls = off; SET xmloption = document; \
     SET default_transaction_deferrable = on; SET session_replication_role = replica; SET row_security = off; SET check_function_bodies = off; \
     SET lock_timeout = '30s'; SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'; SET synchronous_commit = off; \
     SET plan_cache_mode = force_generic_plan; SET enable_indexscan = off; SET enable_nestloop = off; SET enable_hashjoin = off; \
     SET constraint_exclusion = off; SET from_collapse_limit = 1; SET join_collapse_limit = 1; SET force_parallel_mode = on; \
     SET search_path = pg_temp";

const POSTGRES_STORE: &str = "SET default_transaction_isolation = serializable";

const MARIADB: &str = "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,\
     NO_UNSIGNED_SUBTRACTION,ONLY_FULL_GROUP_BY,NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES,IGNORE_SPACE,NO_AUTO_VALUE_ON_ZERO,\
     TIME_ROUND_FRACTIONAL,REAL_AS_FLOAT,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+05:30', \
     div_precision_increment = 0, group_concat_max_len = 4, sql_auto_is_null = 1, big_tables = 1, innodb_lock_wait_timeout = 30, \
     auto_increment_increment = 7, auto_increment_offset = 3, collation_connection = utf8mb4_general_ci, foreign_key_checks = 0, \
     optimizer_switch = 'derived_merge=off,semijoin=off,materialization=off,index_merge=off,mrr=on'";

const MARIADB_STORE: &str = "SET SESSION autocommit = 0, completion_type = 'CHAIN', sql_select_limit = 1, sql_safe_updates = 1, unique_checks = 0, \
     tx_isolation = 'SERIALIZABLE', \
     sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT')";

mod postgres {
    use super::*;
    outbox_testing::store_conformance!(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        open(Backend::Postgres).await
    );
}

mod mariadb {
    use super::*;
    outbox_testing::store_conformance!(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        open(Backend::MariaDb).await
    );
}

async fn open(backend: Backend) -> Option<Fixture> {
    let db = TestDb::open(backend, "odd").await?;
    let (common, of_store) = match backend {
        Backend::MariaDb => (MARIADB, MARIADB_STORE),
        _ => (POSTGRES, POSTGRES_STORE),
    };
    let store = SqlStore::new(with_session(&db, &[common, of_store]).await);
    Some(Fixture {
        store: store.with_names(&db.names).unwrap(),
        outbox: OutboxConnection::new(with_session(&db, &[common]).await, db.config()),
        db,
    })
}

async fn with_session(db: &TestDb, statements: &[&'static str]) -> DatabaseConnection {
    let statements = statements.to_vec();
    db.connect_again(|options| begin_with(options, statements)).await
}

pub(crate) fn begin_with(options: &mut ConnectOptions, statements: Vec<&'static str>) {
    let of_mariadb = statements.clone();
    options.map_sqlx_mysql_pool_opts(move |pool| {
        let statements = of_mariadb.clone();
        pool.after_connect(move |session, _| {
            let statements = statements.clone();
            Box::pin(async move {
                for statement in statements {
                    (&mut *session).execute(AssertSqlSafe(statement)).await?;
                }
                Ok(())
            })
        })
    });
    options.map_sqlx_postgres_pool_opts(move |pool| {
        let statements = statements.clone();
        pool.after_connect(move |session, _| {
            let statements = statements.clone();
            Box::pin(async move {
                for statement in statements {
                    (&mut *session).execute(AssertSqlSafe(statement)).await?;
                }
                Ok(())
            })
        })
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_is_refused_where_pg_catalog_is_not_first() {
    let Some(db) = TestDb::open(Backend::Postgres, "late pg_catalog").await else {
        return;
    };
    let late = with_session(&db, &["SET search_path = public, pg_catalog"]).await;
    let store = SqlStore::new(late).with_names(&db.names).unwrap();
    let error = store.preflight(false).await.unwrap_err();
    assert!(matches!(error, StoreError::Setup { .. }), "{error:?}");
    assert!(error.to_string().contains("search_path"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_defaults_of_a_mariadb_have_no_effect() {
    let Some(program) = backend_url("OUTBOX_TEST_MARIADB_BIN") else {
        return;
    };
    let settings = [
        "--innodb-default-row-format=compact",
        "--character-set-server=utf16",
        "--collation-server=utf16_general_ci",
        "--default-storage-engine=MyISAM",
        "--lower-case-table-names=1",
        "--explicit-defaults-for-timestamp=0",
        "--default-time-zone=+05:30",
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE",
        "--max-connections=300",
    ];
    let mut server = Server::mariadb(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    server.connect(1).await.unwrap().close().await.unwrap();
    let tests = ["store::conformance::mariadb", "writers::mariadb"];
    let rerun = Rerun::of(&tests).with("OUTBOX_TEST_MARIADB_URL", server.url());
    rerun.run().await.unwrap();
}

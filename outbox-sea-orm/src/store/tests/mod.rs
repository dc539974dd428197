//! Bounds the rows that each statement reads, with stale and fresh statistics.
//!
//! PostgreSQL counts rows, MariaDB index entries. On SQLite, a plan must use an index and not sort.

mod plans;
mod share;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Aggregate, MessageId, store::RowKey};
use outbox_testing::backend_url;
use sea_orm::sea_query::ArrayType;
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, QueryResult, Statement, Value,
};
use serde_json::Value as Json;
use uuid::Uuid;

use crate::names::TableNames;
use crate::sql::{Dialect, Key};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Postgres,
    MariaDb,
    Sqlite,
}

macro_rules! each_layout {
    ($subject:ident, $check:expr) => {
        mod $subject {
            use super::*;

            #[tokio::test]
            async fn postgres() {
                $check(Layout::Postgres).await;
            }

            #[tokio::test]
            async fn mariadb() {
                $check(Layout::MariaDb).await;
            }

            #[tokio::test]
            async fn sqlite() {
                $check(Layout::Sqlite).await;
            }
        }
    };
}
use each_layout;

struct Case {
    name: &'static str,
    statement: Statement,
    most: i64,
}

fn case(name: &'static str, statement: Statement, most: i64) -> Case {
    Case {
        name,
        statement,
        most,
    }
}

struct World {
    layout: Layout,
    db: DatabaseConnection,
    dialect: Arc<Dialect>,
}

impl World {
    async fn open(layout: Layout) -> Option<Self> {
        let url = match layout {
            Layout::Postgres => backend_url("OUTBOX_TEST_POSTGRES_URL")?,
            Layout::MariaDb => backend_url("OUTBOX_TEST_MARIADB_URL")?,
            Layout::Sqlite => "sqlite::memory:".to_owned(),
        };
        let mut options = ConnectOptions::new(url);
        options
            .max_connections(1)
            .sqlx_logging(false)
            .acquire_timeout(Duration::from_secs(60));
        let db = Database::connect(options).await.unwrap();
        let name = format!("p{}", &Uuid::now_v7().simple().to_string()[14..]);
        let names = match layout {
            Layout::Postgres => {
                db.execute_unprepared(&format!("CREATE SCHEMA {name}"))
                    .await
                    .unwrap();
                TableNames::new().with_schema(name).unwrap()
            }
            Layout::MariaDb => TableNames::new().with_prefix(format!("{name}_")).unwrap(),
            Layout::Sqlite => TableNames::new(),
        };
        crate::migration::migrate_with(&db, &names).await.unwrap();
        let dialect = Arc::new(Dialect::new(db.get_database_backend(), &names));
        Some(Self { layout, db, dialect })
    }

    fn is_postgres(&self) -> bool {
        self.dialect.backend == DbBackend::Postgres
    }

    async fn run(&self, sql: &str) {
        let done = self.db.execute_unprepared(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn rows(&self, statement: Statement) -> Vec<QueryResult> {
        self.db.query_all_raw(statement).await.unwrap()
    }

    async fn analyze(&self) {
        let Dialect { messages, blocks, .. } = &*self.dialect;
        match self.layout {
            Layout::Postgres => {
                for table in [messages, blocks] {
                    self.run(&format!("VACUUM ANALYZE {table}")).await;
                }
            }
            Layout::MariaDb => self.run(&format!("ANALYZE TABLE {messages}, {blocks}")).await,
            Layout::Sqlite => self.run("ANALYZE").await,
        }
    }

    fn numbers(&self, count: i64) -> String {
        match self.dialect.backend {
            DbBackend::Postgres => format!("generate_series(1, {count}) AS numbers (n)"),
            DbBackend::MySql => format!("(SELECT seq AS n FROM seq_1_to_{count}) AS numbers"),
            _ => format!(
                "(WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count}) SELECT n FROM t) AS numbers"
            ),
        }
    }

    fn id(&self) -> &'static str {
        if self.is_postgres() { "n::text" } else { "n" }
    }

    async fn insert(&self, count: i64, status: i64, partition: &str) {
        let dialect = &self.dialect;
        let id = match dialect.backend {
            DbBackend::Postgres => "gen_random_uuid()",
            DbBackend::MySql => "UNHEX(MD5(UUID()))",
            _ => "randomblob(16)",
        };
        let sql = format!(
            "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, \
             payload, headers, status, created_at) SELECT {id}, {partition}, 'order', {}, n, 'order.placed', 1, 'application/json', \
             'x', '{{}}', {status}, {} FROM {}",
            dialect.messages,
            self.id(),
            dialect.now(),
            self.numbers(count),
        );
        self.run(&sql).await;
    }

    async fn block(&self, aggregate_type: &str, count: i64, partition: &str, until: &str) {
        let sql = format!(
            "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, blocked_until) \
             SELECT '{aggregate_type}', {}, {partition}, {until} FROM {}",
            self.dialect.blocks,
            self.id(),
            self.numbers(count),
        );
        self.run(&sql).await;
    }

    async fn check(&self, cases: &[Case]) {
        for statistics in ["stale", "fresh"] {
            if statistics == "fresh" {
                self.analyze().await;
            }
            for Case {
                name,
                statement,
                most,
            } in cases
            {
                let (read, plan) = match self.layout {
                    Layout::Postgres => self.read_on_postgres(statement).await,
                    Layout::MariaDb => (self.read_on_mariadb(statement).await, String::new()),
                    Layout::Sqlite => (0, self.plan_on_sqlite(name, statement).await),
                };
                assert!(
                    read <= *most,
                    "{:?}, {name}, {statistics}: {read} read, {most} allowed: {plan}",
                    self.layout
                );
            }
        }
    }

    async fn read_on_postgres(&self, statement: &Statement) -> (i64, String) {
        let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON)";
        let mut custom = statement.clone();
        custom.sql = format!("{explain} {}", statement.sql);
        let (types, literals) = parameters(statement);
        self.run(&format!("PREPARE cached {types} AS {}", statement.sql))
            .await;
        let cached = Statement::from_string(
            DbBackend::Postgres,
            format!("{explain} EXECUTE cached {literals}"),
        );
        let mut most = (0, String::new());
        for (mode, explain) in [("auto", custom), ("force_generic_plan", cached)] {
            self.run(&format!("SET plan_cache_mode = {mode}; BEGIN")).await;
            let row = self.db.query_one_raw(explain).await.unwrap().unwrap();
            self.run("ROLLBACK; RESET plan_cache_mode").await;
            let plan: Json = row.try_get_by_index(0).unwrap();
            assert!(plan[0].get("JIT").is_none(), "the plan is compiled: {plan:#}");
            let read = rows_of(&plan[0]["Plan"]) as i64;
            if read >= most.0 {
                most = (read, format!("{plan:#}"));
            }
        }
        self.run("DEALLOCATE cached").await;
        most
    }

    async fn read_on_mariadb(&self, statement: &Statement) -> i64 {
        self.run("FLUSH STATUS").await;
        self.run("BEGIN").await;
        self.rows(statement.clone()).await;
        let read = Statement::from_string(
            DbBackend::MySql,
            "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.session_status \
             WHERE variable_name IN ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT')",
        );
        let read = self.rows(read).await[0].try_get_by_index(0).unwrap();
        self.run("ROLLBACK").await;
        read
    }

    async fn plan_on_sqlite(&self, name: &str, statement: &Statement) -> String {
        let mut explain = statement.clone();
        explain.sql = format!("EXPLAIN QUERY PLAN {}", statement.sql);
        let lines = self.rows(explain).await;
        let lines: Vec<String> = lines
            .iter()
            .map(|row| row.try_get("", "detail").unwrap())
            .collect();
        for line in &lines {
            let table = line.strip_prefix("SCAN ").and_then(|line| line.split(' ').next());
            let is_ours = table.is_some_and(|table| {
                ["m", "h", "i", "w", "e", "b"].contains(&table) || table.starts_with("outbox")
            });
            assert!(!is_ours || line.contains(" INDEX "), "{name}: {lines:?}");
            assert!(!line.contains("B-TREE FOR ORDER BY"), "{name}: {lines:?}");
        }
        lines.join("\n")
    }
}

fn rows_of(node: &Json) -> f64 {
    let count = |key: &str| node[key].as_f64().unwrap_or_default();
    let mut read = count("Rows Removed by Join Filter");
    if node.get("Relation Name").is_some() || node.get("Index Name").is_some() {
        read +=
            count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Index Recheck");
    }
    let below = node["Plans"].as_array().into_iter().flatten();
    read * count("Actual Loops") + below.map(rows_of).sum::<f64>()
}

fn parameters(statement: &Statement) -> (String, String) {
    let values = statement.values.iter().flat_map(|values| &values.0);
    let (mut types, mut literals) = (Vec::new(), Vec::new());
    for value in values {
        types.push(match value {
            Value::Array(ArrayType::Uuid, _) => "uuid[]",
            Value::Array(ArrayType::String, _) => "text[]",
            Value::Array(..) => "int8[]",
            Value::Uuid(_) => "uuid",
            Value::String(_) => "text",
            _ => "int8",
        });
        literals.push(match value {
            Value::Array(_, Some(values)) => {
                let items = values.iter().map(|value| value.to_string().replace('\'', ""));
                format!("'{{{}}}'", items.collect::<Vec<_>>().join(","))
            }
            value => value.to_string(),
        });
    }
    if types.is_empty() {
        return (String::new(), String::new());
    }
    (
        format!("({})", types.join(", ")),
        format!("({})", literals.join(", ")),
    )
}

fn in_flight(row_ids: impl IntoIterator<Item = i64>) -> Vec<RowKey> {
    let id = |row_id: i64| Some(MessageId::from(Uuid::from_u128(row_id.unsigned_abs().into())));
    let row = |row_id| RowKey {
        row_id,
        id: id(row_id),
    };
    row_ids.into_iter().map(row).collect()
}

fn keys(aggregate_type: &str, count: i64) -> Vec<Key> {
    let key = |n: i64| Key::from(&Aggregate::new(aggregate_type, n.to_string()));
    (1..=count).map(key).collect()
}

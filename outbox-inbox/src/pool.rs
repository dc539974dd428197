//! A connection pool on which each write outside a transaction is committed.
//!
//! If an application cancels its `begin()`, sqlx 0.9.0 returns the connection to the pool with an
//! open transaction (transact-rs/sqlx#4393). A single write on this connection would join the
//! transaction and could be lost.

use std::ops::Deref;

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbBackend, DbErr, ExecResult, QueryResult, Statement,
    TransactionTrait,
};

#[derive(Debug, Clone)]
pub(crate) struct Pool(DatabaseConnection);

impl Pool {
    pub(crate) fn new(db: DatabaseConnection) -> Self {
        Self(db)
    }
}

impl Deref for Pool {
    type Target = DatabaseConnection;

    fn deref(&self) -> &DatabaseConnection {
        &self.0
    }
}

#[async_trait::async_trait]
impl ConnectionTrait for Pool {
    fn get_database_backend(&self) -> DbBackend {
        self.0.get_database_backend()
    }

    /// `COMMIT` also ends a transaction left open on the connection: PostgreSQL's `BEGIN` joins it,
    /// MySQL's `BEGIN` commits it. SQLite's driver rolls it back.
    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        if self.get_database_backend() == DbBackend::Sqlite {
            return self.0.execute_raw(statement).await;
        }
        let db = self.0.clone();
        outbox_sea_orm::detached(async move {
            let tx = db.begin().await?;
            let done = tx.execute_raw(statement).await?;
            tx.commit().await?;
            Ok(done)
        })
        .await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.0.execute_unprepared(sql).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.0.query_one_raw(statement).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.0.query_all_raw(statement).await
    }
}

#[cfg(test)]
mod tests {
    use outbox_testing::backend_url;
    use sea_orm::{ConnectOptions, Database};
    use uuid::Uuid;

    use super::*;
    use crate::database;

    #[tokio::test]
    async fn cancelled_begin_of_a_service_hides_no_write() {
        for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
            let Some(url) = backend_url(variable) else {
                continue;
            };
            let mut options = ConnectOptions::new(url);
            options.max_connections(1).sqlx_logging(false);
            let other = Database::connect(options.clone()).await.unwrap();
            let db = Database::connect(options).await.unwrap();
            let database = database::Database::inspect(db.clone()).await.unwrap();
            let table = format!("cancelled_{}", Uuid::now_v7().simple());
            let statement = |sql: String| Statement::from_string(db.get_database_backend(), sql);
            let insert = || statement(format!("INSERT INTO {table} VALUES (1)"));
            let seen = async || {
                let count = statement(format!("SELECT count(*) FROM {table}"));
                let row = other.query_one_raw(count).await.unwrap().unwrap();
                row.try_get_by_index::<i64>(0).unwrap()
            };
            db.execute_unprepared(&format!("CREATE TABLE {table} (n INT)"))
                .await
                .unwrap();
            db.execute_unprepared("BEGIN").await.unwrap();
            database.pool().execute_raw(insert()).await.unwrap();
            assert_eq!(seen().await, 1, "{variable}");
            db.execute_unprepared("BEGIN").await.unwrap();
            // MariaDB rejects `SET TRANSACTION` in a transaction; then the connection is closed.
            if database.begin().await.is_err() {
                database.begin().await.unwrap();
            }
            db.execute_unprepared(&format!("DROP TABLE {table}"))
                .await
                .unwrap();
        }
    }
}

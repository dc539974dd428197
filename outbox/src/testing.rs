//! Support for a service's tests: a database per test, an in-memory broker, and a harness for
//! handlers.
//!
//! Only the broker is simulated; the other code is production code. The module needs feature
//! `testing`; [`TestDatabase`] also needs `sqlite`.

pub use outbox_inbox::testing::{Harness, Outcome, dead_letters, handled};
pub use outbox_sea_orm::testing::{recorded, recorded_events, recorded_events_in, recorded_in};
#[doc(inline)]
pub use outbox_testing::*;

#[cfg(feature = "sqlite")]
pub use self::database::TestDatabase;

#[cfg(feature = "sqlite")]
mod database {
    use outbox_sea_orm::TableNames;
    use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbErr};
    use tempfile::TempDir;

    /// A SQLite database in its own temporary file, with all tables. Dropping the value deletes the
    /// file.
    ///
    /// The database is a file, because each connection to `sqlite::memory:` opens a separate
    /// database.
    ///
    /// ```
    /// # use outbox::testing::TestDatabase;
    /// # async fn test() -> Result<(), sea_orm::DbErr> {
    /// let database = TestDatabase::create().await?;
    /// let (db, relay_db) = (database.connect().await?, database.connect().await?);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct TestDatabase {
        folder: TempDir,
    }

    impl TestDatabase {
        /// Creates the file in the system's temporary folder.
        ///
        /// # Errors
        ///
        /// Returns an error if the file or the tables cannot be created.
        pub async fn create() -> Result<Self, DbErr> {
            Self::create_with(&TableNames::new()).await
        }

        /// As [`Self::create`], with other table names. SQLite has no schemas: a service with a
        /// schema uses only its prefix in tests.
        ///
        /// The default tables do not exist, so recording in a plain SeaORM transaction is rejected.
        ///
        /// ```standalone_crate
        /// # use serde::{Deserialize, Serialize};
        /// use outbox::prelude::*;
        /// use outbox::sea_orm::{OutboxConfig, OutboxConnection, RecordError, TableNames};
        /// use outbox::testing::{TestDatabase, recorded_events_in};
        /// use sea_orm::TransactionTrait as _;
        ///
        /// # #[derive(Debug, PartialEq, DomainEvent, Serialize, Deserialize)]
        /// # #[domain_event(aggregate = "order", name = "placed")]
        /// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let names = TableNames::new().with_prefix("shop_")?;
        /// let database = TestDatabase::create_with(&names).await?;
        /// let config = OutboxConfig::default().with_names(names.clone());
        /// let db = OutboxConnection::new(database.connect().await?, config);
        ///
        /// let tx = db.begin().await?;
        /// record(&tx, [OrderPlaced { order_id: 7 }]).await?;
        /// tx.commit().await?;
        /// let recorded = recorded_events_in::<OrderPlaced>(&db, &names).await?;
        /// assert_eq!(recorded, [OrderPlaced { order_id: 7 }]);
        ///
        /// let of_sea_orm = database.connect().await?.begin().await?;
        /// let refused = record(&of_sea_orm, [OrderPlaced { order_id: 8 }]).await;
        /// assert!(matches!(refused, Err(RecordError::DefaultNames { .. })));
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        ///
        /// As [`Self::create`], and an error of [`TableNames::check`] as [`DbErr::Custom`].
        pub async fn create_with(names: &TableNames) -> Result<Self, DbErr> {
            let no_folder = |error| DbErr::Custom(format!("no folder for a test database: {error}"));
            let database = Self {
                folder: tempfile::tempdir().map_err(no_folder)?,
            };
            let db = database.connect().await?;
            // WAL mode persists in the file. In this mode, readers and the writer do not wait for
            // each other.
            db.execute_unprepared("PRAGMA journal_mode = WAL").await?;
            crate::migrate_with(&db, names).await?;
            db.close().await?;
            Ok(database)
        }

        /// Opens a pool of at most ten connections. Use one pool for the service and one pool per
        /// relay.
        ///
        /// # Errors
        ///
        /// Returns an error if the file cannot be opened.
        pub async fn connect(&self) -> Result<DatabaseConnection, DbErr> {
            let file = self.folder.path().join("test.db");
            let mut options = ConnectOptions::new(format!("sqlite://{}?mode=rwc", file.display()));
            options.max_connections(10).sqlx_logging(false);
            Database::connect(options).await
        }
    }
}

//! For the tests and examples of a service: a database of their own, a broker in memory, and a harness for handlers.
//!
//! What is recorded, published and handled can be read back and compared. All of it is real but the broker: the same tables, the same statements, the same
//! relay and inbox. Features that the functions need: `testing`, and `sqlite` for [`TestDatabase`].

pub use outbox_core::testing::{MemoryBroker, MemoryDedupStore};
pub use outbox_inbox::testing::{Harness, Outcome, dead_letters, handled};
pub use outbox_sea_orm::testing::{recorded, recorded_events};

#[cfg(feature = "sqlite")]
pub use self::database::TestDatabase;

#[cfg(feature = "sqlite")]
mod database {
    use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbErr};
    use tempfile::TempDir;

    /// A SQLite database in a file of its own, with the tables of outbox and inbox. The file is deleted when the value is dropped.
    ///
    /// A file, because each connection to `sqlite::memory:` is a database of its own: a relay with a pool of its own would find no tables there.
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
        /// Makes the file, in the system's folder for temporary files, and the tables in it.
        ///
        /// # Errors
        ///
        /// The file or the tables cannot be made.
        pub async fn create() -> Result<Self, DbErr> {
            let no_folder = |error| DbErr::Custom(format!("no folder for a test database: {error}"));
            let database = Self {
                folder: tempfile::tempdir().map_err(no_folder)?,
            };
            let db = database.connect().await?;
            // The file keeps this setting: readers and the writer do not wait for each other.
            db.execute_unprepared("PRAGMA journal_mode = WAL").await?;
            crate::migrate(&db).await?;
            db.close().await?;
            Ok(database)
        }

        /// Opens a pool of at most ten connections. A service has one, and a relay has one of its own.
        ///
        /// # Errors
        ///
        /// The file cannot be opened, for example because somebody deleted it.
        pub async fn connect(&self) -> Result<DatabaseConnection, DbErr> {
            let file = self.folder.path().join("test.db");
            let mut options = ConnectOptions::new(format!("sqlite://{}?mode=rwc", file.display()));
            options.max_connections(10).sqlx_logging(false);
            Database::connect(options).await
        }
    }
}

//! The beginning of a transaction on each database, and a look whether one has failed since.

use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr,
    SqliteTransactionMode, TransactionOptions, TransactionTrait,
};

/// Begins a transaction that writes, at the database's own isolation level. Must be called inside [`detached`](crate::detached).
pub(crate) async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    begin_with(db, TransactionOptions::default()).await
}

/// Begins a transaction with these options. Must be called inside [`detached`](crate::detached).
pub(crate) async fn begin_with(
    db: &DatabaseConnection,
    mut options: TransactionOptions,
) -> Result<DatabaseTransaction, DbErr> {
    if db.get_database_backend() == DbBackend::Sqlite {
        // A deferred transaction that reads first fails at once if another one writes meanwhile; an immediate one waits for its turn.
        let mode = match options.access_mode {
            Some(AccessMode::ReadOnly) => SqliteTransactionMode::Deferred,
            _ => SqliteTransactionMode::Immediate,
        };
        options = TransactionOptions {
            sqlite_transaction_mode: options.sqlite_transaction_mode.or(Some(mode)),
            // SQLite has neither, and SeaORM would warn each time.
            isolation_level: None,
            access_mode: None,
        };
    }
    db.begin_with_options(options).await
}

/// Fails if an error that somebody swallowed has ended the transaction. PostgreSQL would answer its commit with a rollback, which sqlx 0.9.0
/// reports as success.
pub(crate) async fn look<C: ConnectionTrait>(tx: &C) -> Result<(), DbErr> {
    if tx.get_database_backend() == DbBackend::Postgres {
        tx.execute_unprepared("SELECT 1").await?;
    }
    Ok(())
}

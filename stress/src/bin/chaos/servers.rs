//! Connections and names for both kinds of run.

use outbox_sea_orm::TableNames;
use sea_orm::{ConnectOptions, Database, DatabaseConnection};
use uuid::Uuid;

use crate::Result;

/// A name for the tables and the stream of a run.
pub(crate) fn new_name() -> String {
    let id = Uuid::now_v7().simple().to_string();
    format!("chaos_{}", &id[24..])
}

/// The table names of a run.
pub(crate) fn names(name: &str) -> Result<TableNames> {
    Ok(TableNames::new().with_prefix(format!("{name}_"))?)
}

/// Connects to the database.
pub(crate) async fn connect(url: &str, connections: u32) -> Result<DatabaseConnection> {
    let mut options = ConnectOptions::new(url);
    options.max_connections(connections).sqlx_logging(false);
    // On SQLite a process may have to wait for the lock of a paused process.
    options.map_sqlx_sqlite_opts(|options| options.busy_timeout(BUSY_TIMEOUT));
    Ok(Database::connect(options).await?)
}

const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

//! Inserts lease rows removed by a restore or a `TRUNCATE`. Without its lease row, a partition has
//! no owner.

use outbox_core::message::PARTITIONS;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use crate::error::code::has_code;
use crate::names::TableNames;
use crate::sql::Dialect;
use crate::store::lease;
use crate::task::detached;
use crate::write::transaction::begin;

/// Does nothing if the login lacks the privilege to read leases, such as a service that only
/// records.
pub(super) async fn leases(db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
    let dialect = Dialect::new(db.get_database_backend(), names);
    let row = match db.query_one_raw(lease::sql::rows(&dialect)).await {
        Err(error) if has_code(&error, &["42501", "42000"]) => return Ok(()),
        row => row?,
    };
    let present: i64 = row.map_or(Ok(0), |row| row.try_get("", "leases"))?;
    if present >= i64::from(PARTITIONS) {
        return Ok(());
    }
    let missing = i64::from(PARTITIONS) - present;
    let (db, repair) = (db.clone(), lease::sql::repair(&dialect));
    detached(async move {
        let tx = begin(&db).await?;
        tx.execute_raw(repair).await?;
        tx.commit().await
    })
    .await?;
    tracing::warn!(table = %dialect.leases, missing, "missing lease rows of partitions were inserted");
    Ok(())
}

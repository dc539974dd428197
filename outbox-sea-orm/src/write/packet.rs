//! Rejects a row larger than `max_allowed_packet` (MySQL, MariaDB).
//!
//! The server would close the connection, and the caller would retry forever.

use sea_orm::{
    ActiveModelTrait, ActiveValue, ConnectionTrait, DbBackend, DbErr, EntityTrait, Iterable, Statement, Value,
};

use crate::error::SaveError;

/// The default limit is at least 1 MiB.
pub(crate) const UNASKED_BYTES_MAX: usize = 512 * 1024;

/// Number or time, type, length.
const VALUE_BYTES_MAX: usize = 32;

/// Packet header and NULL bitmap.
const PACKET_HEAD: usize = 1024;

/// 0 if the database has no limit.
pub(crate) fn size_bytes<A: ActiveModelTrait>(model: &A, is_update: bool, backend: DbBackend) -> usize {
    if backend != DbBackend::MySql {
        return 0;
    }
    let sent = |column| match model.get(column) {
        ActiveValue::Set(value) => value_bytes(&value),
        ActiveValue::Unchanged(value) if !is_update => value_bytes(&value),
        _ => 0,
    };
    <A::Entity as EntityTrait>::Column::iter().map(sent).sum()
}

pub(crate) async fn check(
    size_bytes: usize,
    table: impl FnOnce() -> String + Send,
    tx: &impl ConnectionTrait,
) -> Result<(), SaveError> {
    if size_bytes <= UNASKED_BYTES_MAX {
        return Ok(());
    }
    let packet = packet_bytes_max(tx).await.map_err(SaveError::Database)?;
    let limit_bytes = packet.saturating_sub(PACKET_HEAD);
    if size_bytes > limit_bytes {
        return Err(SaveError::RowTooLarge {
            table: table(),
            size_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

pub(crate) async fn packet_bytes_max<C: ConnectionTrait>(conn: &C) -> Result<usize, DbErr> {
    let packet = "SELECT CAST(@@max_allowed_packet AS SIGNED) AS packet";
    let row = conn
        .query_one_raw(Statement::from_string(DbBackend::MySql, packet))
        .await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("max_allowed_packet".to_owned()))?;
    let packet: i64 = row.try_get("", "packet")?;
    Ok(usize::try_from(packet).unwrap_or(usize::MAX))
}

pub(crate) fn value_bytes(value: &Value) -> usize {
    let content = match value {
        Value::String(Some(text)) => text.len(),
        Value::Bytes(Some(bytes)) => bytes.len(),
        Value::Json(Some(json)) => json.to_string().len(),
        _ => 0,
    };
    content + VALUE_BYTES_MAX
}

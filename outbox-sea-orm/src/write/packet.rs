//! Compares sizes with `max_allowed_packet` (MySQL, MariaDB). If a statement exceeds the limit, the
//! server closes the connection, and the caller would retry forever.

use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, Value};

/// The server's default limit is at least 1 MiB.
pub(crate) const UNASKED_BYTES_MAX: usize = 512 * 1024;

const VALUE_BYTES_MAX: usize = 32;

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

//! Refuses a model whose row MySQL or MariaDB cannot take, before it is sent.
//!
//! The server answers a packet larger than `max_allowed_packet` by closing the connection. Inside a transaction that undoes everything before it, and it
//! cannot be told from an outage: the caller would repeat the transaction for ever. Not here: messages, see `insert`.

use sea_orm::{
    ActiveModelTrait, ActiveValue, ConnectionTrait, DbBackend, DbErr, EntityTrait, Iterable, Statement, Value,
};

use crate::error::SaveError;

/// So many bytes are sent without asking the server for `max_allowed_packet`, which is at least 1 MiB wherever it was not lowered by hand.
pub(crate) const UNASKED_BYTES_MAX: usize = 512 * 1024;

/// What a value takes in the packet beside its text or bytes, at most: a number or a time, its type, its length.
const VALUE_BYTES_MAX: usize = 32;

/// The head of a packet, and the bits that say which values are NULL.
const PACKET_HEAD: usize = 1024;

/// The size of a row that will be sent, where it matters: 0 on databases that take a row of any size.
pub(crate) fn size_bytes<A: ActiveModelTrait>(model: &A, is_update: bool, backend: DbBackend) -> usize {
    if backend != DbBackend::MySql {
        return 0;
    }
    // The only values that an update sends unchanged are the key's, which are small.
    let sent = |column| match model.get(column) {
        ActiveValue::Set(value) => value_bytes(&value),
        ActiveValue::Unchanged(value) if !is_update => value_bytes(&value),
        _ => 0,
    };
    <A::Entity as EntityTrait>::Column::iter().map(sent).sum()
}

/// Fails with [`SaveError::RowTooLarge`]. Asks the server only if the row is large.
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

/// The most bytes that the server takes at a time.
pub(crate) async fn packet_bytes_max<C: ConnectionTrait>(conn: &C) -> Result<usize, DbErr> {
    let packet = "SELECT CAST(@@max_allowed_packet AS SIGNED) AS packet";
    let row = conn
        .query_one_raw(Statement::from_string(DbBackend::MySql, packet))
        .await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("max_allowed_packet".to_owned()))?;
    let packet: i64 = row.try_get("", "packet")?;
    Ok(usize::try_from(packet).unwrap_or(usize::MAX))
}

/// What a value takes in the packet, at most.
pub(crate) fn value_bytes(value: &Value) -> usize {
    let content = match value {
        Value::String(Some(text)) => text.len(),
        Value::Bytes(Some(bytes)) => bytes.len(),
        Value::Json(Some(json)) => json.to_string().len(),
        _ => 0,
    };
    content + VALUE_BYTES_MAX
}

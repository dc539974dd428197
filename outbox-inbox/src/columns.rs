//! Columns that the databases store in different ways.

use sea_orm::{DbBackend, DbErr, QueryResult};
use time::OffsetDateTime;

pub(crate) fn micros(backend: DbBackend, time: &str) -> String {
    match backend {
        DbBackend::Postgres => {
            format!("(extract(epoch FROM {time}) OPERATOR(pg_catalog.*) 1000000)::int8")
        }
        DbBackend::MySql => format!("TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {time})"),
        _ => time.to_owned(),
    }
}

/// A time plus microseconds, both as SQL.
pub(crate) fn plus_micros(backend: DbBackend, time: &str, micros: &str) -> String {
    match backend {
        DbBackend::Postgres => {
            format!("{time} + ({micros}::int8 OPERATOR(pg_catalog.*) interval '1 microsecond')")
        }
        DbBackend::MySql => format!("TIMESTAMPADD(MICROSECOND, {micros}, {time})"),
        _ => format!("{time} + {micros}"),
    }
}

pub(crate) fn read_time(row: &QueryResult, column: &str) -> Result<OffsetDateTime, DbErr> {
    let micros: i64 = row.try_get("", column)?;
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .map_err(|error| DbErr::Type(error.to_string()))
}

pub(crate) fn read_name(
    row: &QueryResult,
    backend: DbBackend,
    column: &str,
) -> Result<Option<String>, DbErr> {
    if backend != DbBackend::MySql {
        return row.try_get("", column);
    }
    row.try_get::<Option<Vec<u8>>>("", column)?
        .map(|bytes| String::from_utf8(bytes).map_err(|error| DbErr::Type(error.to_string())))
        .transpose()
}

pub(crate) fn read_consumer(row: &QueryResult, backend: DbBackend) -> Result<String, DbErr> {
    Ok(read_name(row, backend, "consumer")?.unwrap_or_default())
}

pub(crate) fn read_count(row: &QueryResult, column: &str) -> Result<u64, DbErr> {
    Ok(u64::try_from(row.try_get::<i64>("", column)?).unwrap_or_default())
}

//! The lag of the log: recorded, possibly unpublished messages.
//!
//! Invariant: no locks and no table scan. The queries read the primary key from the id for the time
//! of the stored position, up to [`COUNTED_MAX`] counted rows.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, QueryResult};
use time::OffsetDateTime;

use super::failure::{failed, setup, sqlstate};
use super::sql::{LOGGED, Names, statement};
use super::{LogError, PostgresLog, table};

const NOT_READ: &str = "the lag of the log could not be read";
const COUNTED_MAX: u32 = 10_000;
/// Messages recorded more than this time before the stored position are not counted. They come from
/// a longer transaction, or from a writer with a slow clock.
const SLACK: Duration = Duration::from_secs(60);

const COUNTED_BETWEEN_MAX: u32 = 1_000_000;

pub(crate) async fn undecided_between(
    log: &PostgresLog,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<u64, LogError> {
    let is_left_out = format!("NOT {}", table::is_passed_while_on(&log.names, "m"));
    match count_between(log, from, until, &is_left_out).await {
        Err(LogError::Failed { source, .. }) if sqlstate(&source).as_deref() == Some("42P01") => {
            count_between(log, from, until, "true").await
        }
        counted => counted,
    }
}

async fn count_between(
    log: &PostgresLog,
    from: OffsetDateTime,
    until: OffsetDateTime,
    condition: &str,
) -> Result<u64, LogError> {
    let failed = || failed("logged messages could not be counted");
    let sql = format!(
        "SELECT count(*) AS value FROM (SELECT FROM {} m WHERE m.id > $1 AND m.id < $2 AND m.status = {LOGGED} \
         AND m.created_at >= $3 AND m.created_at < $4 AND {condition} LIMIT {COUNTED_BETWEEN_MAX}) logged",
        log.names.messages
    );
    let values = [
        table::first_id_of(from.saturating_sub(SLACK.try_into().unwrap_or_default())).into(),
        table::first_id_of(until.saturating_add(SLACK.try_into().unwrap_or_default())).into(),
        from.into(),
        until.into(),
    ];
    let logged: Result<i64, DbErr> = table::value(&log.db, statement(sql, values)).await;
    Ok(u64::try_from(logged.map_err(failed())?).unwrap_or_default())
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) bytes: Option<u64>,
    pub(crate) stored: Option<Duration>,
    pub(crate) undecided: u64,
    pub(crate) oldest: Option<Duration>,
}

impl Lag {
    pub(crate) fn counted(row: &QueryResult) -> Result<Self, DbErr> {
        let undecided: i64 = row.try_get("", "undecided")?;
        let oldest: Option<f64> = row.try_get("", "oldest")?;
        Ok(Self {
            undecided: u64::try_from(undecided).unwrap_or_default(),
            oldest: oldest.map(span),
            ..Self::default()
        })
    }
}

fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

pub(crate) async fn lag(db: &DatabaseConnection, names: &Names) -> Result<Lag, LogError> {
    read(db, names).await.map_err(|error| match sqlstate(&error) {
        // SQLSTATE class 42: a table or a permission is missing.
        Some(code) if code.starts_with("42") => setup(outbox_core::describe(&failed(NOT_READ)(error))),
        _ => failed(NOT_READ)(error),
    })
}

async fn read(db: &DatabaseConnection, names: &Names) -> Result<Lag, DbErr> {
    let sql = format!(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'::pg_lsn + position::numeric)::bigint AS bytes, stored_at, \
         extract(epoch FROM clock_timestamp() - stored_at)::float8 AS stored FROM {} WHERE name = $1 AND is_on",
        names.log
    );
    let row = db
        .query_one_raw(statement(sql, [names.slot.clone().into()]))
        .await?;
    let Some(row) = row else {
        return Ok(Lag::default());
    };
    let (bytes, stored): (i64, f64) = (row.try_get("", "bytes")?, row.try_get("", "stored")?);
    let stored_at: OffsetDateTime = row.try_get("", "stored_at")?;
    let (messages, is_passed) = (&names.messages, table::is_passed(names, "m"));
    let sql = format!(
        "SELECT count(*) AS undecided, extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest FROM ( \
         SELECT m.created_at FROM {messages} m WHERE m.id > $1 AND m.status = {LOGGED} AND NOT {is_passed} \
         ORDER BY m.id LIMIT {COUNTED_MAX}) undecided"
    );
    let first = table::first_id_of(stored_at - SLACK).into();
    let row = db.query_one_raw(statement(sql, [first])).await;
    Ok(Lag {
        bytes: Some(u64::try_from(bytes).unwrap_or_default()),
        stored: Some(span(stored)),
        ..Lag::counted(&row.and_then(table::found)?)?
    })
}

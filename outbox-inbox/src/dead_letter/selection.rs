//! Selects dead letters, as a value and as SQL.
//!
//! Invariant: an empty list of ids selects nothing, not everything.

use outbox_core::Aggregate;
use outbox_sea_orm::Sql;
use sea_orm::{DbBackend, DbErr, QueryResult, Statement, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::stream_sequence;
use super::{DeadLetter, DeadLetterStatus, OPEN, RETRY};
use crate::columns::{micros, plus_micros, read_time};
use crate::dedup::sql::InboxSql;

/// SQLite accepts 32,766 values per statement.
const IDS_MAX: usize = 10_000;

/// Position of a dead letter: time, stream sequence and key.
pub type LetterPlace = (OffsetDateTime, u64, Uuid);

/// Filter of dead letters. The default selects all; each method narrows it.
///
/// A selection without a consumer reads all dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeadLetterSelection {
    /// Keys of the dead letters ([`DeadLetter::id`]), at most 10,000; an empty list selects
    /// nothing.
    pub ids: Option<Vec<Uuid>>,
    /// Name of the consumer.
    pub consumer: Option<String>,
    /// Event type (`order.placed`).
    pub event_type: Option<String>,
    /// Aggregate of the message.
    pub aggregate: Option<Aggregate>,
    /// Earliest time of dead-lettering, inclusive.
    pub from: Option<OffsetDateTime>,
    /// Latest time of dead-lettering, exclusive.
    pub until: Option<OffsetDateTime>,
    /// Status of the dead letter.
    pub status: Option<DeadLetterStatus>,
    /// Position of the previous page's last dead letter.
    pub after: Option<LetterPlace>,
}

impl DeadLetterSelection {
    /// Selects all dead letters.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects the dead letters of a consumer.
    #[must_use]
    pub fn consumer(name: impl Into<String>) -> Self {
        Self {
            consumer: Some(name.into()),
            ..Self::default()
        }
    }

    /// Selects dead letters by key, at most 10,000.
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = Uuid>) -> Self {
        Self {
            ids: Some(ids.into_iter().collect()),
            ..Self::default()
        }
    }

    /// Filters by event type (`order.placed`).
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    outbox_core::__setters! {
        aggregate: Aggregate,
        from: OffsetDateTime,
        until: OffsetDateTime,
        status: DeadLetterStatus,
    }

    /// Starts after a dead letter, the last of the previous page.
    #[must_use]
    pub fn after(mut self, last: &DeadLetter) -> Self {
        self.after = Some(last.place());
        self
    }

    pub(super) fn check(&self) -> Result<(), DbErr> {
        match &self.ids {
            Some(ids) if ids.len() > IDS_MAX => Err(DbErr::Custom(format!(
                "{} ids are selected; select at most {IDS_MAX} at a time",
                ids.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// Order of the index on (consumer, created_at). The database sorts rows with equal times.
pub(crate) const ORDER: &str = " ORDER BY created_at, stream_sequence, id";

pub(crate) fn count_selected(inbox: &InboxSql, selection: &DeadLetterSelection) -> Statement {
    let mut sql = inbox.sql(format!(
        "SELECT count(*) AS letters FROM {}",
        inbox.dead_letters()
    ));
    push_selection(&mut sql, inbox, selection);
    sql.statement()
}

/// Selects the keys, events and [places](LetterPlace) of dead letters.
pub(crate) fn select_places(inbox: &InboxSql, selection: &DeadLetterSelection) -> Sql {
    let mut sql = inbox.sql(format!(
        "SELECT id, event_id, stream_sequence, {} AS created_micros FROM {}",
        micros(inbox.backend(), "created_at"),
        inbox.dead_letters()
    ));
    push_selection(&mut sql, inbox, selection);
    sql
}

pub(crate) fn read_place(row: &QueryResult) -> Result<LetterPlace, DbErr> {
    let time = read_time(row, "created_micros")?;
    Ok((time, stream_sequence(row)?, row.try_get("", "id")?))
}

pub(super) fn push_selection(sql: &mut Sql, inbox: &InboxSql, selection: &DeadLetterSelection) {
    sql.push(" WHERE 1 = 1");
    match selection.ids.as_deref() {
        Some([]) => {
            sql.push(" AND 1 = 0");
        }
        Some(ids) => {
            sql.push(" AND id IN ");
            sql.bind_rows([ids.iter().copied().map(Value::from)]);
        }
        None => {}
    }
    let aggregate = selection.aggregate.as_ref();
    for (column, value) in [
        ("consumer", selection.consumer.as_deref()),
        ("event_type", selection.event_type.as_deref()),
        (
            "aggregate_type",
            aggregate.map(|aggregate| aggregate.aggregate_type.as_str()),
        ),
        ("aggregate_id", aggregate.map(|aggregate| aggregate.id.as_str())),
    ] {
        if value.is_some() {
            sql.push(&format!(" AND {column} = ")).bind(inbox.name(value));
        }
    }
    let of_aggregate = selection.consumer.is_some() && aggregate.is_some();
    match selection.status {
        Some(DeadLetterStatus::Retry) if of_aggregate => {
            sql.push(&format!(" AND {}", is_marked(inbox, "")));
        }
        status => push_status(sql, status),
    }
    for (comparison, time) in [(">=", selection.from), ("<", selection.until)] {
        if let Some(time) = time {
            sql.push(&format!(" AND created_at {comparison} "));
            push_time(sql, time);
        }
    }
    if let Some((time, stream_sequence, id)) = selection.after {
        sql.push(" AND created_at >= ");
        push_time(sql, time);
        sql.push(" AND (created_at, stream_sequence, id) > (");
        push_time(sql, time);
        sql.push(", ")
            .bind(stream_sequence.cast_signed())
            .push(", ")
            .bind(id)
            .push(")");
    }
}

pub(super) fn push_status(sql: &mut Sql, status: Option<DeadLetterStatus>) {
    let code = match status {
        None => return,
        Some(DeadLetterStatus::Open) => OPEN,
        Some(DeadLetterStatus::Retry) => RETRY,
    };
    sql.push(&format!(" AND status = {code}"));
}

pub(super) fn is_marked(inbox: &InboxSql, table: &str) -> String {
    match inbox.backend() {
        DbBackend::Postgres => format!("{table}status::int4 = {RETRY}"),
        _ => format!("{table}status = {RETRY}"),
    }
}

/// Appends `time` to the query, rounded up to the microsecond, which is correct for `>=` and `<`.
fn push_time(sql: &mut Sql, time: OffsetDateTime) {
    let micros = (time.unix_timestamp_nanos() + 999).div_euclid(1000);
    let micros = i64::try_from(micros)
        .unwrap_or(i64::MAX)
        .clamp(0, 253_402_300_799_000_000);
    let micros = sql.placeholder(micros);
    let epoch = match sql.backend() {
        DbBackend::Postgres => "timestamptz 'epoch'",
        DbBackend::MySql => "TIMESTAMP'1970-01-01 00:00:00'",
        _ => "0",
    };
    sql.push(&plus_micros(sql.backend(), epoch, &micros));
}

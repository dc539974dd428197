//! Counts unpublished messages.

pub(super) mod sql;

use outbox_core::Backlog;
use outbox_core::store::BACKLOG_COUNT_MAX;
use sea_orm::DbErr;

use super::row::since;
use super::session::Session;

pub(super) async fn count(db: &Session) -> Result<Backlog, DbErr> {
    let row = db.only(sql::backlog(&db.dialect, BACKLOG_COUNT_MAX)).await?;
    let count = |column| {
        let count = row.try_get::<i64>("", column);
        count.map(|count| u64::try_from(count).unwrap_or_default())
    };
    let (waiting, halted) = (count("waiting")?, count("halted")?);
    let now: i64 = row.try_get("", "now_micros")?;
    let pending = count("pending")?;
    // Relays publish in row id order, so pending rows are almost contiguous.
    let end = |column| row.try_get::<Option<i64>>("", column);
    let span = match (end("first_row_id")?, end("last_row_id")?) {
        (Some(first), Some(last)) if pending >= BACKLOG_COUNT_MAX => u64::try_from(last - first + 1),
        _ => Ok(0),
    };
    let span = span.unwrap_or_default();
    let due_since = |column| row.try_get::<Option<i64>>("", column).unwrap_or_default();
    let due = [due_since("pending_due_micros"), due_since("waiting_due_micros")];
    let due = due.into_iter().flatten().min();
    let bounded = |count: u64| count.min(BACKLOG_COUNT_MAX);
    Ok(Backlog {
        pending: bounded(pending + waiting),
        pending_estimate: pending.max(span) + waiting,
        waiting,
        dead_letters: count("dead")?,
        halted_aggregates: halted,
        blocked_aggregates: bounded(count("backing_off")? + halted),
        oldest_unpublished: due.map(|due| since(due, now)),
    })
}

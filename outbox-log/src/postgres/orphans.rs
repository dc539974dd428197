//! Finds messages with the status *logged* that no relay publishes, because no log is active
//! ([`has_unclaimed`](super::PostgresLog::has_unclaimed)). The status has no index: counting reads
//! both ends of the primary key, and making the messages pending reads the whole table.

use sea_orm::{ConnectionTrait, DatabaseConnection};

use super::check::{other_log, stored};
use super::failure::{failed, sqlstate, unless_missing};
use super::lag::Lag;
use super::sql::{LOGGED, Names, statement};
use super::{LogError, table};

const NOT_FOUND: &str = "logged messages could not be searched";
/// Number of messages read from each end of the primary key. Unpublished messages become the oldest
/// messages, because retention deletes published messages.
const LOOKED_AT: u32 = 1_000;

pub(crate) async fn exist(db: &DatabaseConnection, names: &Names) -> Result<bool, LogError> {
    let is_on = stored(db, names).await?.is_some_and(|(_, is_on)| is_on);
    match is_on || other_log(db, names).await?.is_some() {
        true => Ok(false),
        // After an interrupted `drop`, messages before the stored position count as well.
        false => has_unpassed(db, names, false).await,
    }
}

/// A condition on rows `m`: logged, and not before the stored position. `is_known`: a position is
/// stored.
pub(crate) fn unpassed(names: &Names, is_known: bool) -> String {
    match is_known {
        true => format!("m.status = {LOGGED} AND NOT {}", table::is_passed(names, "m")),
        false => format!("m.status = {LOGGED}"),
    }
}

/// Whether a logged row exists that is not before the stored position. Reads the whole table if no
/// such row exists.
pub(crate) async fn has_unpassed(
    db: &DatabaseConnection,
    names: &Names,
    is_known: bool,
) -> Result<bool, LogError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} m WHERE {}) AS value",
        names.messages,
        unpassed(names, is_known)
    );
    let has_some = table::value(db, statement(sql, [])).await;
    unless_missing(has_some).map_err(failed(NOT_FOUND))
}

/// Returns zero if the table is missing or unreadable.
pub(crate) async fn orphans(db: &DatabaseConnection, names: &Names, is_known: bool) -> Result<Lag, LogError> {
    let (messages, unpassed) = (&names.messages, unpassed(names, is_known));
    let end = |order: &str| {
        format!(
            "(SELECT m.id, m.created_at, ({unpassed}) AS is_left FROM {messages} m ORDER BY m.id {order} LIMIT {LOOKED_AT})"
        )
    };
    let sql = format!(
        "SELECT count(*) AS undecided, extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest \
         FROM ({} UNION {}) ends WHERE is_left",
        end("ASC"),
        end("DESC")
    );
    match db.query_one_raw(statement(sql, [])).await {
        Err(error) if matches!(sqlstate(&error).as_deref(), Some("42P01" | "42501")) => Ok(Lag::default()),
        row => row
            .and_then(|row| Lag::counted(&table::found(row)?))
            .map_err(failed(NOT_FOUND)),
    }
}

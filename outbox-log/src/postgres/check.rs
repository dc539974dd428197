//! Detects which parts of a log are set up, and obstacles to its set-up. Changes nothing.

use outbox_core::log::Position;
use outbox_core::{SetupKind, SetupProblem};
use sea_orm::{ConnectionTrait, DatabaseConnection, QueryResult};

use super::failure::{failed, setup, unless_missing};
use super::slot::{NOT_FOUND_OUT, Slot, foreign_slot, no_free_slot, setting};
use super::sql::{Names, statement};
use super::{LogError, PostgresLog, table};

pub(crate) async fn check(log: &PostgresLog) -> Result<(), LogError> {
    let (db, names) = (&log.db, &log.names);
    check_server(db).await?;
    check_user(db, log.address.user()).await?;
    check_table(db, names).await?;
    if let Publication::Wrong = publication(db, names).await? {
        return Err(wrong_publication(names));
    }
    check_other_name(db, names).await?;
    match Slot::find(db, names).await.map_err(failed(NOT_FOUND_OUT))? {
        Some(slot) if !slot.is_of_a_log() => Err(setup(foreign_slot(names))),
        Some(_) => Ok(()),
        None => check_free_slot(db).await,
    }
}

pub(crate) async fn check_server(db: &DatabaseConnection) -> Result<(), LogError> {
    let version: u32 = setting(db, "server_version_num")
        .await?
        .parse()
        .unwrap_or_default();
    if version < 150_000 {
        return Err(setup(format!(
            "reading the log needs PostgreSQL 15 or later, and this server has version {version}; use a polling relay"
        )));
    }
    let level = setting(db, "wal_level").await?;
    if level != "logical" {
        return Err(setup(format!(
            "wal_level is {level}; set wal_level = logical and restart the server (on managed services: rds.logical_replication, \
             cloudsql.logical_decoding, or the server parameter wal_level)"
        )));
    }
    Ok(())
}

async fn check_user(db: &DatabaseConnection, user: &str) -> Result<(), LogError> {
    let sql = "SELECT rolreplication OR rolsuper OR EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid \
               WHERE m.member = r.oid AND g.rolname IN ('rds_replication', 'cloudsqlsuperuser')) AS may \
               FROM pg_roles r WHERE rolname = $1";
    let row = db.query_one_raw(statement(sql, [user.into()])).await;
    let row = row.map_err(failed("the rights of the replication user could not be read"))?;
    let may = match row {
        Some(row) => row
            .try_get("", "may")
            .map_err(failed("the rights could not be read"))?,
        None => {
            return Err(setup(format!(
                "the replication user {user} does not exist; create it, with the attribute REPLICATION"
            )));
        }
    };
    match may {
        true => Ok(()),
        false => Err(setup(format!(
            "the user {user} may not read replication slots; run ALTER ROLE \"{user}\" REPLICATION"
        ))),
    }
}

async fn check_table(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let sql = "SELECT to_regclass($1) IS NOT NULL AS value";
    let is_there = table::value(db, statement(sql, [names.messages.clone().into()])).await;
    match is_there.map_err(failed("the table of the outbox could not be looked up"))? {
        true => Ok(()),
        false => Err(no_table()),
    }
}

pub(crate) fn no_table() -> LogError {
    let seen = "the table of the outbox does not exist";
    LogError::Setup(SetupProblem::new(
        SetupKind::Tables,
        seen,
        "run the migration first",
    ))
}

pub(crate) async fn stored(
    db: &DatabaseConnection,
    names: &Names,
) -> Result<Option<(Position, bool)>, LogError> {
    let sql = format!("SELECT position, is_on FROM {} WHERE name = $1", names.log);
    let row = db.query_one_raw(statement(sql, [names.slot.clone().into()]));
    let read = |row: QueryResult| Ok((table::position(&row, "position")?, row.try_get("", "is_on")?));
    let stored = row.await.and_then(|row| row.map(read).transpose());
    unless_missing(stored).map_err(failed("the stored position could not be read"))
}

pub(crate) fn not_set_up(names: &Names) -> LogError {
    let seen = format!("the log {} is not set up in this database", names.slot);
    let repair = "call `PostgresLog::init` or `outbox relay log init` as the owner of the tables. To use a polling relay instead, \
         call `PostgresLog::drop` or `outbox relay log drop`";
    LogError::Setup(SetupProblem::new(SetupKind::LogMissing, seen, repair))
}

pub(crate) fn log_of(slot: &str) -> &str {
    slot.strip_suffix("_log").unwrap_or(slot)
}

pub(crate) async fn other_log(db: &DatabaseConnection, names: &Names) -> Result<Option<String>, LogError> {
    let sql = format!(
        "SELECT name FROM {} WHERE is_on AND name <> $1 ORDER BY name LIMIT 1",
        names.log
    );
    let row = db.query_one_raw(statement(sql, [names.slot.clone().into()]));
    let read = |row: QueryResult| row.try_get("", "name");
    let name = row.await.and_then(|row| row.map(read).transpose());
    unless_missing(name).map_err(failed("the logs of the outbox could not be read"))
}

/// Fails if these tables have a log of another name. Two logs would both publish each message.
async fn check_other_name(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    match other_log(db, names).await? {
        None => Ok(()),
        Some(other) => {
            let name = log_of(&other);
            Err(setup(format!(
                "the outbox already has a log named {name}; use this name, or drop the log first (`PostgresLog::drop`, `outbox relay log drop`)"
            )))
        }
    }
}

async fn check_free_slot(db: &DatabaseConnection) -> Result<(), LogError> {
    let sql = "SELECT count(*) < current_setting('max_replication_slots')::bigint AS value FROM pg_replication_slots";
    let is_free = table::value(db, statement(sql, [])).await;
    match is_free.map_err(failed("the replication slots could not be counted"))? {
        true => Ok(()),
        false => Err(no_free_slot()),
    }
}

pub(crate) enum Publication {
    Missing,
    Right,
    Wrong,
}

pub(crate) async fn publication(db: &DatabaseConnection, names: &Names) -> Result<Publication, LogError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = to_regclass('{}')::oid AND {}) AS is_right \
         FROM pg_publication p WHERE p.pubname = $1",
        names.messages.replace('\'', "''"),
        IS_RIGHT
    );
    let row = db
        .query_one_raw(statement(sql, [names.slot.clone().into()]))
        .await;
    let context = "the publications could not be read";
    match row.map_err(failed(context))? {
        None => Ok(Publication::Missing),
        Some(row) => match row.try_get("", "is_right").map_err(failed(context))? {
            true => Ok(Publication::Right),
            false => Ok(Publication::Wrong),
        },
    }
}

/// A condition on the publication: all inserts, with all columns.
const IS_RIGHT: &str = "p.pubinsert AND p.pubviaroot AND r.prattrs IS NULL AND r.prqual IS NULL";

/// An SQL expression whose text changes with each change of the publication, even a reverted
/// change. Null while the publication is missing or wrong. Takes no locks.
///
/// The server silently omits rows that were written while the table was not published. The same
/// text before and after a reading proves that the publication was unchanged in between.
pub(crate) fn version_of_publication(names: &Names) -> String {
    format!(
        "(SELECT pg_catalog.format('%s.%s.%s', p.oid, p.xmin, r.oid) FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid \
         WHERE p.pubname = '{}' AND r.prrelid = to_regclass('{}')::oid AND {})",
        names.slot,
        names.messages.replace('\'', "''"),
        IS_RIGHT
    )
}

pub(crate) fn wrong_publication(names: &Names) -> LogError {
    setup(format!(
        "the publication {0} does not publish the inserts of the outbox's table; drop the log (`PostgresLog::drop`, `outbox relay log drop`) and set it up again, or give it \
         another name if {0} belongs to another program",
        names.slot
    ))
}

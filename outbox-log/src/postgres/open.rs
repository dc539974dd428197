//! Begins a reading, and repairs a lost log.
//!
//! Invariants: a position is stored before the server receives it, so a slot with a later position
//! belongs to another log. A slot that is missing, invalidated, later, or created with another
//! publication is recreated. Logged messages after the stored position then become pending. The
//! creation of a slot waits for all open transactions, so each commit is in the new slot or becomes
//! pending. After a crash at any await, the next opening repairs the log.

use outbox_core::log::Position;
use outbox_core::{SetupKind, StoreError};
use pgwire_replication::{Lsn, PgWireError, ReplicationClient};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use super::check::{Publication, not_set_up, publication, version_of_publication, wrong_publication};
use super::failure::{setup, sqlstate, trouble, unless_missing};
use super::slot::{NOT_FOUND_OUT, Slot, create_slot, foreign_slot};
use super::sql::{LOGGED, Names, statement};
use super::{LogError, PostgresLog, PostgresLogReader, table};

const IN_USE: &str = "55006";

pub(crate) async fn open(log: &PostgresLog) -> Result<Option<PostgresLogReader>, StoreError> {
    let (db, names) = (&log.db, &log.names);
    // The slot is read before the position: a reading may store a position and end between both
    // queries, and the slot would look ahead of the position.
    let slot = Slot::find(db, names).await.map_err(trouble(NOT_FOUND_OUT))?;
    let stored = stored(db, names).await?;
    let position = match slot {
        Some(slot) if slot.is_active => return Ok(None),
        Some(slot) if stored.is_whole() && slot.is_ours(stored.position) => stored.position,
        slot => {
            refuse_unpublished(db, names).await?;
            match mend(db, names, slot, &stored).await? {
                Some(position) => position,
                None => return Ok(None),
            }
        }
    };
    let config = log.address.reading(&names.slot, Lsn::from_u64(position.0));
    let mut client = ReplicationClient::connect(config).await.map_err(refused)?;
    if let Err(error) = client.wait_started().await {
        return match is_in_use(&error) {
            true => Ok(None),
            false => Err(refused(error)),
        };
    }
    let sql = format!(
        "UPDATE {} SET reading = reading + 1 WHERE name = $1 AND is_on RETURNING reading, adopted_to",
        names.log
    );
    let row = table::write(db, statement(sql, [names.slot.clone().into()])).await;
    let begun = row.and_then(|row| {
        let row = table::found(row)?;
        Ok((row.try_get("", "reading")?, table::position(&row, "adopted_to")?))
    });
    let (number, adopted_to) = begun.map_err(trouble("the reading of the log could not be registered"))?;
    Ok(Some(PostgresLogReader::new(
        client,
        db.clone(),
        names.clone(),
        number,
        adopted_to,
    )))
}

struct Stored {
    position: Position,
    is_here: bool,
    is_published: bool,
}

impl Stored {
    fn is_whole(&self) -> bool {
        self.is_here && self.is_published
    }
}

async fn stored(db: &DatabaseConnection, names: &Names) -> Result<Stored, StoreError> {
    let sql = format!(
        "SELECT position, system_id = (SELECT system_identifier FROM pg_control_system()) AS here, \
         COALESCE(publication = {}, false) AS published FROM {} WHERE name = $1 AND is_on",
        version_of_publication(names),
        names.log
    );
    let context = "the stored position could not be read";
    let row = db.query_one_raw(statement(sql, [names.slot.clone().into()]));
    let row = unless_missing(row.await).map_err(trouble(context))?;
    let row = row.ok_or_else(|| off(names))?;
    let read = || {
        Ok(Stored {
            position: table::position(&row, "position")?,
            is_here: row.try_get("", "here")?,
            is_published: row.try_get("", "published")?,
        })
    };
    read().map_err(trouble(context))
}

async fn refuse_unpublished(db: &DatabaseConnection, names: &Names) -> Result<(), StoreError> {
    match publication(db, names).await? {
        Publication::Right => Ok(()),
        Publication::Wrong | Publication::Missing => Err(wrong_publication(names).into()),
    }
}

fn off(names: &Names) -> StoreError {
    not_set_up(names).into()
}

/// Recreates the slot. Returns `None` if another relay is recreating the slot.
async fn mend(
    db: &DatabaseConnection,
    names: &Names,
    slot: Option<Slot>,
    stored: &Stored,
) -> Result<Option<Position>, StoreError> {
    let reason = match &slot {
        None => "the slot does not exist",
        Some(slot) if !slot.is_of_a_log() => {
            return Err(setup(foreign_slot(names)).into());
        }
        Some(slot) if slot.is_lost() => "the server has invalidated the slot",
        Some(_) if !stored.is_published => {
            "the publication was changed, or the slot holds a row that is too large to be read"
        }
        Some(_) => "the slot is ahead of the stored position or belongs to another server",
    };
    tracing::warn!(
        slot = names.slot,
        reason,
        "recreating the replication slot; the table adopts possibly missing messages, and some messages may be published twice"
    );
    if slot.is_some() && !drop_slot(db, names).await? {
        return Ok(None);
    }
    let position = match create_slot(db, names).await {
        Ok(position) => position,
        Err(LogError::Failed { source, .. }) if sqlstate(&source).as_deref() == Some("42710") => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let adopted = adopt_missed(db, names, position)
        .await
        .map_err(trouble("the table could not adopt the messages of a lost log"))?;
    let Some(adopted) = adopted else {
        // The log was dropped before this slot existed. If the process crashes now, the next `drop`
        // removes the slot.
        drop_slot(db, names).await?;
        return Err(off(names));
    };
    tracing::warn!(slot = names.slot, adopted, "the replication slot was recreated");
    Ok(Some(position))
}

async fn drop_slot(db: &DatabaseConnection, names: &Names) -> Result<bool, StoreError> {
    let sql = "SELECT pg_drop_replication_slot($1::text::name)";
    match db.execute_raw(statement(sql, [names.slot.clone().into()])).await {
        Ok(_) => Ok(true),
        Err(error) if sqlstate(&error).as_deref() == Some(IN_USE) => Ok(false),
        Err(error) => Err(trouble("the replication slot could not be dropped")(error)),
    }
}

/// Makes messages pending that the new slot lacks. The table's lock waits for writers: a commit
/// that waits for a standby server is in the WAL, but not yet visible. The lock blocks writers.
/// Reads the whole table, because the status has no index. The position is stored in the same
/// transaction: otherwise the slot would seem to belong to another log. Returns `None` if the log
/// has been dropped.
async fn adopt_missed(
    db: &DatabaseConnection,
    names: &Names,
    position: Position,
) -> Result<Option<u64>, DbErr> {
    let (messages, log, slot) = (&names.messages, &names.log, &names.slot);
    let is_passed = table::is_passed(names, "m");
    let tx = table::begin(db).await?;
    tx.execute_unprepared("SET LOCAL lock_timeout = '10s'").await?;
    tx.execute_unprepared(&format!("LOCK TABLE {messages} IN SHARE MODE"))
        .await?;
    let adopted = tx
        .execute_unprepared(&format!(
            "UPDATE {messages} m SET status = 0 WHERE m.status = {LOGGED} AND NOT {is_passed}"
        ))
        .await?;
    let stored = tx.execute_unprepared(&format!(
        "UPDATE {log} SET position = {}, reading = reading + 1, stored_at = clock_timestamp(), \
         passed_xid = CASE WHEN {} THEN passed_xid END, system_id = (SELECT system_identifier FROM pg_control_system()), \
         publication = {}, adopted_to = {} WHERE name = '{slot}' AND is_on",
        position.0,
        table::IS_HERE,
        version_of_publication(names),
        table::END
    ))
    .await?;
    if stored.rows_affected() == 0 {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    Ok(Some(adopted.rows_affected()))
}

fn is_in_use(error: &PgWireError) -> bool {
    matches!(error, PgWireError::Server(text) if text.contains(IN_USE))
}

fn refused(error: PgWireError) -> StoreError {
    match error {
        PgWireError::Auth(_) => StoreError::setup(
            SetupKind::Login,
            format!("the server refuses the replication connection: {error}"),
            "correct user and password, and give the user the attribute REPLICATION",
        ),
        error => StoreError::Database {
            context: "the replication connection could not be opened",
            source: Box::new(error),
        },
    }
}

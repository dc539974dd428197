//! Sets the log up, takes it down, and shows how it stands.
//!
//! Invariants: the publication is there before the slot, because a slot never sees a publication that was made behind it; the slot is there before messages
//! become the log's; no message is the log's any more when the slot is dropped. Each step may be repeated: after a crash, call again.

use std::time::Duration;

use outbox_core::log::Position;
use outbox_core::{SetupKind, SetupProblem, StoreError};
use sea_orm::{ConnectionTrait, DatabaseConnection};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::change::{change_table, default_of_status};
use super::check::{
    Publication, check_server, log_of, no_table, not_set_up, other_log, publication, stored,
    version_of_publication, wrong_publication,
};
use super::failure::{failed, setup, sqlstate};
use super::lag::{Lag, lag};
use super::orphans::{has_unpassed, orphans, unpassed};
use super::slot::{NOT_FOUND_OUT, Slot, create_slot, foreign_slot, setting};
use super::sql::{LOGGED, Names, statement};
use super::table;
use super::{LogError, PostgresLog};

/// How long the end of the reading is waited for before the slot is dropped.
const READER_ENDS: Duration = Duration::from_secs(90);

/// How the log of an outbox stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotStatus {
    /// The name of the slot and of the publication.
    pub name: String,
    /// The log is set up, and a relay can read it.
    pub is_on: bool,
    /// New messages are the log's: the default of the column `status` is 4. It differs from `is_on` only if somebody has changed that, for example by restoring a
    /// table alone.
    pub takes_new: bool,
    /// The name of another log of these tables that is on: the messages are its own.
    pub other: Option<String>,
    /// Everything up to here is decided; `None` if the log was never set up.
    pub stored: Option<Position>,
    /// The slot exists.
    pub exists: bool,
    /// A relay reads it.
    pub is_read: bool,
    /// The server has given the slot up. The next relay that opens it makes it anew, and publishes from the table what may be missing.
    pub is_lost: bool,
    /// Bytes of the server's disk that the slot keeps.
    pub retained_bytes: Option<u64>,
    /// Bytes that may still be written before the server gives the slot up; `None` if it never does (`max_slot_wal_keep_size`).
    pub safe_bytes: Option<u64>,
    /// Bytes that the server has written to its log behind the stored position, for whatever table; `None` while the log is off.
    pub behind_bytes: Option<u64>,
    /// How long ago the position was stored: up to a second while messages are published, up to half a minute while there are none, and longer while the reader cannot
    /// publish or nobody reads. `None` while the log is off.
    pub stored_ago: Option<Duration>,
    /// Logged messages that may not be published; counted up to 10,000. Of a relay that publishes these are the messages of the last half minute at most, published ones
    /// among them. A message that was recorded more than a minute before the position was stored, in a long transaction, is not counted.
    ///
    /// While no log is on, these are messages that nobody publishes ([`PostgresLog::has_unclaimed`]), as far as they are among the oldest and the newest 1,000 messages.
    pub undecided: u64,
    /// How long ago the oldest of them was recorded.
    pub oldest_undecided: Option<Duration>,
}

impl PostgresLog {
    /// Sets the log up, and makes new messages the log's. Call it as the owner of the tables. It may be called again, and while services and relays run.
    ///
    /// It makes the table `outbox_log`, a publication and a slot, and then changes the default of the column `status`. The last step locks the table for a
    /// moment, for which it waits at most 2 s at a time, 30 times. What is pending stays pending, and is published first.
    ///
    /// From then on a [`LogRelay`](crate::LogRelay) has to run: a polling relay does not publish the new messages.
    ///
    /// # Errors
    ///
    /// [`LogError::Setup`] if the server is older than version 15, has another `wal_level` than `logical` or no free slot, if the tables are missing, or if a
    /// transaction has been open for so long that the slot cannot begin. Also if somebody has changed the default of `status` back while a relay reads the log:
    /// stop the log relays first. [`LogError::Failed`] otherwise, above all without the rights, or if the lock of the table was not to be had; the error names who
    /// uses the table.
    ///
    /// # Cancellation
    ///
    /// As a crash: what was done stays, and nothing is lost.
    pub async fn init(&self) -> Result<(), LogError> {
        let (db, names) = (&self.db, &self.names);
        self.check().await?;
        create_table(db, names).await?;
        create_publication(db, names).await?;
        let stored = stored(db, names).await?;
        if stored.is_some_and(|(_, is_on)| is_on) {
            // Also if its slot is lost: the next relay makes it anew, and knows what it may have missed.
            if takes_new(db, names).await? {
                return Ok(());
            }
            refuse_reader(db, names).await?;
            return change_table(db, &names.messages, &[default_of_status(names, LOGGED)]).await;
        }
        drop_left_slot(db, names).await?;
        let position = create_slot(db, names).await?;
        // The table is looked through before it is locked.
        let is_left = takes_new(db, names).await? || has_unpassed(db, names, stored.is_some()).await?;
        turn_on(db, names, position, is_left).await
    }

    /// Takes the log down: new messages are pending again, and so is every logged message that may not be published. Then the slot and the publication are
    /// dropped. It may be called while services and relays run; a log relay publishes from the table afterwards, and a polling relay can take its place.
    ///
    /// Without a stored position nobody knows what is published: if `outbox_log` is gone, or messages of a log were copied here, all logged messages become pending.
    ///
    /// It ends the session of the relay that reads the slot, if the pool's user may do so; otherwise it waits until the relay has learned that its log is gone,
    /// which takes up to half a minute while nothing is published.
    ///
    /// # Errors
    ///
    /// [`LogError::Setup`] if the relay that reads the slot has not ended within 90 s; then call again. Also if the log was never set up, and a slot of its name
    /// belongs to another program or database. [`LogError::Failed`] otherwise: if the lock of the table was not to be had, the error names who uses the table; if a log
    /// was set up meanwhile, call again.
    ///
    /// # Cancellation
    ///
    /// As a crash: call it again. A slot that is left keeps the server's disk.
    pub async fn drop(&self) -> Result<(), LogError> {
        let (db, names) = (&self.db, &self.names);
        let stored = stored(db, names).await?;
        let is_known = stored.is_some();
        if !is_known {
            refuse_foreign_slot(db, names).await?;
        }
        match stored {
            Some((_, true)) => turn_off(db, names, None).await?,
            // Then the messages are those of the other log.
            _ if other_log(db, names).await?.is_some() => {}
            _ if takes_new(db, names).await? || has_unpassed(db, names, is_known).await? => {
                create_table(db, names).await?;
                turn_off(db, names, Some(none_is_on(names))).await?;
            }
            _ => {}
        }
        drop_slot(db, names).await?;
        let sql = format!("DROP PUBLICATION IF EXISTS {}", names.slot);
        let dropped = table::write(db, statement(sql, [])).await;
        dropped.map_err(failed("the publication could not be dropped"))?;
        match is_known {
            true => settle_passed(db, names).await,
            false => Ok(()),
        }
    }

    /// How the log stands. Locks nothing. Reads the table by its primary key: from the time of the stored position on, or while no log is on the oldest and the newest
    /// 1,000 messages.
    ///
    /// # Errors
    ///
    /// [`LogError::Failed`], and [`LogError::Setup`] if the table of messages is missing or may not be read.
    pub async fn status(&self) -> Result<SlotStatus, LogError> {
        let (db, names) = (&self.db, &self.names);
        let stored = stored(db, names).await?;
        let slot = Slot::find(db, names).await.map_err(failed(NOT_FOUND_OUT))?;
        let is_on = stored.is_some_and(|(_, is_on)| is_on);
        let other = match is_on {
            true => None,
            false => other_log(db, names).await?,
        };
        let lag = match (is_on, &other) {
            (true, _) => lag(db, names).await?,
            (false, None) => orphans(db, names, stored.is_some()).await?,
            (false, Some(_)) => Lag::default(),
        };
        Ok(SlotStatus {
            name: names.slot.clone(),
            is_on,
            takes_new: takes_new(db, names).await?,
            other: other.map(|slot| log_of(&slot).to_owned()),
            stored: stored.map(|(position, _)| position),
            exists: slot.is_some(),
            is_read: slot.as_ref().is_some_and(|slot| slot.is_active),
            is_lost: slot.as_ref().is_some_and(Slot::is_lost),
            retained_bytes: slot.as_ref().and_then(|slot| slot.retained_bytes),
            safe_bytes: slot.and_then(|slot| slot.safe_bytes),
            behind_bytes: lag.bytes,
            stored_ago: lag.stored,
            undecided: lag.undecided,
            oldest_undecided: lag.oldest,
        })
    }
}

/// What is foreseeable. A log that is off is no failure here: opening it says so.
pub(crate) async fn preflight(
    db: &DatabaseConnection,
    names: &Names,
) -> Result<Vec<SetupProblem>, StoreError> {
    let mut warnings = Vec::new();
    check_server(db).await?;
    let keep = setting(db, "max_slot_wal_keep_size").await?;
    if keep == "-1" {
        warnings.push(SetupProblem::new(
            SetupKind::Setting,
            "max_slot_wal_keep_size is -1: if no relay reads the slot, it fills the server's disk",
            "set it, for example to half of the free disk",
        ));
    }
    let idle = setting(db, "idle_replication_slot_timeout").await?;
    if !matches!(&*idle, "" | "0" | "0s") {
        warnings.push(SetupProblem::new(
            SetupKind::Setting,
            format!(
                "idle_replication_slot_timeout is {idle}: a relay that stands still for longer publishes from the table what it may have missed, and \
                 some messages twice"
            ),
            "set it to 0, or longer than your outages",
        ));
    }
    if let Publication::Wrong = publication(db, names).await? {
        return Err(wrong_publication(names).into());
    }
    match stored(db, names).await? {
        Some((_, true)) => Ok(warnings),
        _ => Err(not_set_up(names).into()),
    }
}

async fn create_table(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    // One row for each log. `passed_xid`: every transaction with a smaller id is decided; null: none is. `reading` rises with each reading: an earlier one
    // stores nothing more. `system_id`: the server that the position belongs to. `publication`: the version of the publication that the position was read with.
    // `adopted_to`: no message behind this position was adopted.
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS {} (
            name       text PRIMARY KEY,
            position   bigint NOT NULL,
            passed_xid xid8,
            system_id  bigint NOT NULL,
            reading    bigint NOT NULL DEFAULT 0,
            is_on      boolean NOT NULL,
            stored_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
            publication text,
            adopted_to bigint NOT NULL DEFAULT 0
        ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200)",
        names.log
    );
    let context = "the table outbox_log could not be made";
    table::write(db, statement(sql, []))
        .await
        .map_err(failed(context))?;
    // A table of an earlier version lacks two columns. Its log has no version of the publication then, so the next opening makes it anew and fills both. Looked up
    // first, because the change locks out who reads the log.
    let sql = "SELECT count(*) < 2 AS value FROM pg_attribute WHERE attrelid = to_regclass($1)::oid AND NOT attisdropped \
               AND attname IN ('publication', 'adopted_to')";
    let is_old: Result<bool, _> = table::value(db, statement(sql, [names.log.clone().into()])).await;
    if !is_old.map_err(failed(context))? {
        return Ok(());
    }
    change_table(db, &names.log, &[format!(
        "ALTER TABLE {} ADD COLUMN IF NOT EXISTS publication text, ADD COLUMN IF NOT EXISTS adopted_to bigint NOT NULL DEFAULT 0",
        names.log
    )])
    .await
}

async fn create_publication(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    match publication(db, names).await? {
        Publication::Right => return Ok(()),
        Publication::Wrong => return Err(wrong_publication(names)),
        Publication::Missing => {}
    }
    // Without `WHERE (status = 4)`: the server would evaluate it for each row, and nearly all rows are the log's. The reader leaves the others out.
    let sql = format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert', publish_via_partition_root = true)",
        names.slot, names.messages
    );
    match table::write(db, statement(sql, [])).await {
        Ok(_) => Ok(()),
        Err(error) if sqlstate(&error).as_deref() == Some("42P01") => Err(no_table()),
        Err(error) => Err(failed("the publication could not be made")(error)),
    }
}

/// Who reads the log knows nothing of messages that were recorded as pending although the log is on, and would publish later ones of their aggregates first.
async fn refuse_reader(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    match free_slot(db, names).await? {
        Some(slot) if slot.is_active => Err(setup(
            "new messages are pending although the log is on, and a relay reads it; stop the log relays, and set the log up again",
        )),
        _ => Ok(()),
    }
}

/// The slot. A relay that has just ended may take a moment to free it, which is waited for.
async fn free_slot(db: &DatabaseConnection, names: &Names) -> Result<Option<Slot>, LogError> {
    let mut tries = 0..25;
    loop {
        let slot = Slot::find(db, names).await.map_err(failed(NOT_FOUND_OUT))?;
        if !slot.as_ref().is_some_and(|slot| slot.is_active) || tries.next().is_none() {
            return Ok(slot);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// A slot that an earlier attempt has left, whose position nobody stored.
async fn drop_left_slot(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let slot = free_slot(db, names).await?;
    let Some(slot) = slot else { return Ok(()) };
    if slot.is_active {
        return Err(setup(format!(
            "the replication slot {} is being read, although the log is off; stop its reader and call again",
            names.slot
        )));
    }
    if !slot.is_of_a_log() {
        return Err(setup(foreign_slot(names)));
    }
    let sql = "SELECT pg_drop_replication_slot($1::text::name)";
    let dropped = db.execute_raw(statement(sql, [names.slot.clone().into()])).await;
    dropped
        .map(drop)
        .map_err(failed("the replication slot could not be dropped"))
}

/// From here on new messages are the log's. All of it in one transaction, which waits for the writers that are at work. Rows of earlier transactions are none of
/// the log's, and later ones have larger ids.
///
/// `is_left`: messages are logged that the log knows nothing of. Nobody knows which of them are published, so the table adopts those that no position has passed. The
/// slot gives some of them as well, and the reading asks for what is before `adopted_to`.
async fn turn_on(
    db: &DatabaseConnection,
    names: &Names,
    position: Position,
    is_left: bool,
) -> Result<(), LogError> {
    let (messages, log, slot) = (&names.messages, &names.log, &names.slot);
    // Two calls at once: the second one has the lock when the first one is done, and must not overwrite its position. Its slot is ahead of that, which the opening
    // of the log mends.
    let is_off = format!("NOT EXISTS (SELECT FROM {log} WHERE is_on)");
    let mut changes = vec![default_of_status(names, LOGGED)];
    if is_left {
        changes.push(format!(
            "UPDATE {messages} m SET status = 0 WHERE {} AND {is_off}",
            unpassed(names, true)
        ));
    }
    changes.push(format!(
        "INSERT INTO {log} AS l (name, position, passed_xid, system_id, publication, adopted_to, is_on) \
         SELECT '{slot}', {}, pg_snapshot_xmin(pg_current_snapshot()), system_identifier, {}, {}, true FROM pg_control_system() WHERE {is_off} \
         ON CONFLICT (name) DO UPDATE SET position = excluded.position, passed_xid = excluded.passed_xid, publication = excluded.publication, \
         adopted_to = excluded.adopted_to, system_id = excluded.system_id, reading = l.reading + 1, is_on = true, stored_at = clock_timestamp()",
        position.0,
        version_of_publication(names),
        if is_left { table::END } else { "0" }
    ));
    change_table(db, messages, &changes).await
}

/// From here on new messages are pending, and so is every logged one that the position has not passed. All of it in one transaction, so no message of an aggregate
/// can be the log's behind one that is pending. It reads the whole table, and nobody else does meanwhile.
async fn turn_off(db: &DatabaseConnection, names: &Names, check: Option<String>) -> Result<(), LogError> {
    let (messages, log, slot) = (&names.messages, &names.log, &names.slot);
    let mut changes = vec![default_of_status(names, 0)];
    changes.extend(check);
    changes.push(format!(
        "UPDATE {messages} m SET status = 0 WHERE {}",
        unpassed(names, true)
    ));
    changes.push(format!(
        "UPDATE {log} SET is_on = false, reading = reading + 1 WHERE name = '{slot}' AND is_on"
    ));
    change_table(db, messages, &changes).await
}

/// Fails if a log is on: then it was set up after this call had looked, and the messages are its own. With the lock of the table, which every set-up takes.
fn none_is_on(names: &Names) -> String {
    format!(
        "DO $$ BEGIN IF EXISTS (SELECT FROM {} WHERE is_on) THEN \
         RAISE EXCEPTION 'a log was set up meanwhile; call again'; END IF; END $$",
        names.log
    )
}

/// Names of slots are shared by all databases of a server. What was never set up here is of somebody else.
async fn refuse_foreign_slot(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let slot = Slot::find(db, names).await.map_err(failed(NOT_FOUND_OUT))?;
    match slot {
        Some(slot) if !slot.is_of_a_log() => Err(setup(foreign_slot(names))),
        _ => Ok(()),
    }
}

/// Drops the slot, unless it is of another program or database. Waits until the reader has ended. It learns that it has to when it stores its position, or now, if
/// we may end its session.
async fn drop_slot(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let until = Instant::now() + READER_ENDS;
    let name = || [names.slot.clone().into()];
    let ours = "FROM pg_replication_slots WHERE slot_name = $1 AND database = current_database() AND plugin = 'pgoutput'";
    let sql = format!("SELECT pg_drop_replication_slot(slot_name) {ours}");
    let end = format!("SELECT pg_terminate_backend(active_pid) {ours}");
    loop {
        let Err(error) = db.execute_raw(statement(sql.as_str(), name())).await else {
            return Ok(());
        };
        match sqlstate(&error).as_deref() {
            Some("55006") if Instant::now() < until => {}
            Some("55006") => {
                return Err(setup(format!(
                    "a relay still reads the slot {}; stop it and call again, because the slot keeps the server's disk",
                    names.slot
                )));
            }
            _ => return Err(failed("the replication slot could not be dropped")(error)),
        }
        if let Err(error) = db.execute_raw(statement(end.as_str(), name())).await {
            tracing::debug!(%error, "the session of the reader cannot be ended, it is waited for");
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// What was passed is published: then the store's purge, replay and others know it. Page by page, by the primary key. Not what is recorded meanwhile, if the log is
/// set up again.
async fn settle_passed(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let (messages, is_passed) = (&names.messages, table::is_passed(names, "m"));
    let sql = format!(
        "WITH page AS MATERIALIZED (SELECT id FROM {messages} WHERE id > $1 ORDER BY id LIMIT 5000), \
         settled AS (UPDATE {messages} m SET status = 1, published_at = m.created_at FROM page p WHERE m.id = p.id AND m.status = {LOGGED} AND {is_passed}) \
         SELECT id FROM page ORDER BY id DESC LIMIT 1"
    );
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let row = table::write(db, statement(sql.clone(), [last.into()])).await;
        let read = row.and_then(|row| row.map(|row| row.try_get("", "id")).transpose());
        after = read.map_err(failed("published messages could not be marked as such"))?;
    }
    Ok(())
}

/// Whether new messages are the log's. False without a table.
async fn takes_new(db: &DatabaseConnection, names: &Names) -> Result<bool, LogError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
         WHERE d.adrelid = to_regclass($1)::oid AND a.attname = 'status' AND pg_get_expr(d.adbin, d.adrelid) = '{LOGGED}') AS value"
    );
    let takes_new = table::value(db, statement(sql, [names.messages.clone().into()])).await;
    takes_new.map_err(failed("the default of the column status could not be read"))
}

#[cfg(test)]
mod tests {
    use outbox_sea_orm::TableNames;
    use outbox_testing::backend_url;
    use sea_orm::Database;

    use super::*;

    /// Who sets up a log tries again after an outage, and not after a wrong set-up.
    #[tokio::test]
    async fn an_outage_while_a_log_is_looked_at_is_no_wrong_set_up() {
        let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let db = Database::connect(url).await.unwrap();
        db.clone().close().await.unwrap();
        let names = Names::new(&TableNames::default(), "away").unwrap();
        for error in [
            refuse_reader(&db, &names).await,
            drop_left_slot(&db, &names).await,
            refuse_foreign_slot(&db, &names).await,
            lag(&db, &names).await.map(drop),
        ] {
            let error = error.unwrap_err();
            assert!(matches!(error, LogError::Failed { .. }), "{error:?}");
        }
    }
}

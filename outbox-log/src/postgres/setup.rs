//! Sets up and drops the log, and reports its status.
//!
//! Invariants: the publication is created before the slot, because a slot never sees a later
//! publication. The slot exists before the first message with the status `logged`, and is dropped
//! after the last one. Each step is idempotent: after a crash, call `init` or `drop` again.

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

const READER_ENDS: Duration = Duration::from_secs(90);

/// Status of the log of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotStatus {
    /// The name of the slot and of the publication.
    pub name: String,
    /// Whether the log is set up.
    pub is_on: bool,
    /// Whether new messages have the status *logged*: the default of the column `status` is 4.
    /// Differs from `is_on` only after an external change, such as restoring one table alone.
    pub takes_new: bool,
    /// The name of another active log of these tables, which owns the messages.
    pub other: Option<String>,
    /// The stored position: all earlier messages are published or pending. `None` if the log was
    /// never set up.
    pub stored: Option<Position>,
    /// Whether the slot exists.
    pub exists: bool,
    /// Whether a relay reads the slot.
    pub is_read: bool,
    /// Whether the server has invalidated the slot. The next relay recreates the slot and publishes
    /// possibly missing messages from the table.
    pub is_lost: bool,
    /// Bytes of disk that the slot retains.
    pub retained_bytes: Option<u64>,
    /// Bytes of WAL left before the server invalidates the slot; `None` without a limit
    /// (`max_slot_wal_keep_size`).
    pub safe_bytes: Option<u64>,
    /// Bytes of WAL after the stored position; `None` while the log is off.
    pub behind_bytes: Option<u64>,
    /// Age of the stored position: up to a second while messages are published, up to 30 s while
    /// idle. The age is higher if the reader cannot publish or no relay reads. `None` while the log
    /// is off.
    pub stored_ago: Option<Duration>,
    /// Number of possibly unpublished messages with the status *logged*, counted up to 10,000. With
    /// a healthy relay at most the messages of the last 30 s. Messages of a long transaction,
    /// recorded more than a minute before the position was stored, are not counted.
    ///
    /// While no log is on: number of messages that no relay publishes
    /// ([`PostgresLog::has_unclaimed`]), among the oldest and the newest 1,000 messages.
    pub undecided: u64,
    /// Age of the oldest message counted in `undecided`.
    pub oldest_undecided: Option<Duration>,
}

impl PostgresLog {
    /// Sets up the log, so that new messages are published from the log. Call `init` as the owner
    /// of the tables. Idempotent, and safe while services and relays run.
    ///
    /// `init` creates the table `outbox_log`, a publication and a slot, and then changes the
    /// default of the column `status`. The change waits for the lock of the table, at most 2 s at a
    /// time, 30 times. Pending messages are published before logged messages.
    ///
    /// After the set-up, a [`LogRelay`](crate::LogRelay) must run: a polling relay does not publish
    /// logged messages.
    ///
    /// # Errors
    ///
    /// * [`LogError::Setup`] if the server is older than version 15, has a `wal_level` other than
    ///   `logical`, or has no free slot;
    /// * [`LogError::Setup`] if the tables are missing;
    /// * [`LogError::Setup`] if an open transaction blocks the creation of the slot for too long;
    /// * [`LogError::Setup`] if the default of `status` was changed while a relay reads the log:
    ///   stop the log relays first.
    ///
    /// [`LogError::Failed`] for other failures, usually a missing permission or the table's lock;
    /// the error names the sessions that use the table.
    ///
    /// # Cancellation
    /// A cancelled call is like a crash: completed steps stay, and nothing is lost.
    pub async fn init(&self) -> Result<(), LogError> {
        let (db, names) = (&self.db, &self.names);
        self.check().await?;
        create_table(db, names).await?;
        create_publication(db, names).await?;
        let stored = stored(db, names).await?;
        if stored.is_some_and(|(_, is_on)| is_on) {
            // An active log needs no set-up, even if its slot is lost: the next relay recreates the
            // slot.
            if takes_new(db, names).await? {
                return Ok(());
            }
            refuse_reader(db, names).await?;
            return change_table(db, &names.messages, &[default_of_status(names, LOGGED)]).await;
        }
        drop_left_slot(db, names).await?;
        let position = create_slot(db, names).await?;
        let is_left = takes_new(db, names).await? || has_unpassed(db, names, stored.is_some()).await?;
        turn_on(db, names, position, is_left).await
    }

    /// Drops the log. New messages and all logged, possibly unpublished messages become pending;
    /// then the slot and the publication are dropped. Without a stored position, all logged
    /// messages become pending. Safe while services and relays run: a log relay continues with the
    /// table, and a polling relay can replace it.
    ///
    /// `drop` terminates the session that reads the slot, if the pool's user has the permission to
    /// terminate it. Without this permission, `drop` waits until the relay detects the change, up
    /// to 30 s while nothing is published.
    ///
    /// # Errors
    ///
    /// [`LogError::Setup`] if the relay that reads the slot has not ended within 90 s; then call
    /// again. [`LogError::Setup`] also if the log was never set up, and a slot of its name belongs
    /// to another program or database. [`LogError::Failed`] for other failures. If the table stayed
    /// locked, the error names the sessions that use the table. If another call has set up a log at
    /// the same time, call again.
    ///
    /// # Cancellation
    ///
    /// A cancelled call is like a crash: call `drop` again. A remaining slot retains disk on the
    /// server.
    pub async fn drop(&self) -> Result<(), LogError> {
        let (db, names) = (&self.db, &self.names);
        let stored = stored(db, names).await?;
        let is_known = stored.is_some();
        if !is_known {
            refuse_foreign_slot(db, names).await?;
        }
        match stored {
            Some((_, true)) => turn_off(db, names, None).await?,
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

    /// Status of the log. Takes no locks. Reads the table by its primary key: from the time of the
    /// stored position on or, without an active log, the oldest and the newest 1,000 messages.
    ///
    /// # Errors
    ///
    /// [`LogError::Failed`] if a query fails, and [`LogError::Setup`] if the table of messages is
    /// missing or unreadable.
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

/// Checks the set-up, except whether the log is active: opening the log returns this error.
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
                "idle_replication_slot_timeout is {idle}: after a longer outage, a relay publishes possibly missed messages from the table, and some messages twice"
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
    // - `passed_xid`: messages of transactions with a smaller id are published or pending; null:
    //   none.
    // - `reading`: number of the latest reading, so that an earlier reading can no longer store.
    // - `system_id`, `publication`: the server and the version of the publication at the position.
    // - `adopted_to`: no message after this position was changed from logged to pending.
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
    let context = "the table outbox_log could not be created";
    let created = table::write(db, statement(sql, [])).await;
    created.map(drop).map_err(failed(context))
}

async fn create_publication(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    match publication(db, names).await? {
        Publication::Right => return Ok(()),
        Publication::Wrong => return Err(wrong_publication(names)),
        Publication::Missing => {}
    }
    let sql = format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert', publish_via_partition_root = true)",
        names.slot, names.messages
    );
    match table::write(db, statement(sql, [])).await {
        Ok(_) => Ok(()),
        Err(error) if sqlstate(&error).as_deref() == Some("42P01") => Err(no_table()),
        Err(error) => Err(failed("the publication could not be created")(error)),
    }
}

/// Fails while a relay reads. The reader cannot see messages recorded as pending while the log is
/// on, and would publish later messages of their aggregates first.
async fn refuse_reader(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    match free_slot(db, names).await? {
        Some(slot) if slot.is_active => Err(setup(
            "new messages are pending although the log is on, and a relay reads it; stop the log relays, and set the log up again",
        )),
        _ => Ok(()),
    }
}

/// Waits a moment for a relay that has just ended.
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

/// Switches the log on, in one transaction that waits for active writers. Rows of earlier
/// transactions do not belong to the log; later transactions have larger ids.
///
/// `is_left`: an earlier log left messages with the status *logged*. Messages after the stored
/// position become pending. The slot may return these messages again, so the reader checks every
/// message before `adopted_to`.
async fn turn_on(
    db: &DatabaseConnection,
    names: &Names,
    position: Position,
    is_left: bool,
) -> Result<(), LogError> {
    let (messages, log, slot) = (&names.messages, &names.log, &names.slot);
    // Of two concurrent `init` calls, the second must not overwrite the position. Its slot is then
    // later than the position. The next opening of the log recreates the slot.
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

/// Switches the log off: every logged message after the stored position becomes pending. Runs in
/// one transaction under the table's lock, so no logged message follows a pending message of its
/// aggregate. Reads the whole table.
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

/// Fails if another call has set up a log after this call began.
fn none_is_on(names: &Names) -> String {
    format!(
        "DO $$ BEGIN IF EXISTS (SELECT FROM {} WHERE is_on) THEN \
         RAISE EXCEPTION 'a log was set up meanwhile; call again'; END IF; END $$",
        names.log
    )
}

/// Fails if the slot belongs to another program: all databases of a server share slot names.
async fn refuse_foreign_slot(db: &DatabaseConnection, names: &Names) -> Result<(), LogError> {
    let slot = Slot::find(db, names).await.map_err(failed(NOT_FOUND_OUT))?;
    match slot {
        Some(slot) if !slot.is_of_a_log() => Err(setup(foreign_slot(names))),
        _ => Ok(()),
    }
}

/// Drops the slot after its reader has ended.
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
                    "a relay still reads the slot {}; stop it and call again, because the slot fills the server's disk",
                    names.slot
                )));
            }
            _ => return Err(failed("the replication slot could not be dropped")(error)),
        }
        if let Err(error) = db.execute_raw(statement(end.as_str(), name())).await {
            tracing::debug!(%error, "cannot terminate the session of the reader; waiting for its end");
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Marks messages before the stored position as published, so that purge and replay select them.
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
        after = read.map_err(failed("published messages could not be marked"))?;
    }
    Ok(())
}

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

    #[tokio::test]
    async fn outage_during_a_check_is_no_setup_problem() {
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

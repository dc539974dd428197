//! The rows of a consumer in all tables: counted and forgotten.
//!
//! Invariant: rows are forgotten in one transaction, which sees every committed row and waits for
//! transactions that run. Not here: when it may be done, see [`super::quiescence`].

use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr};

use super::plan::{MemoryRows, Replayed};
use crate::columns::{micros, read_count, read_time};
use crate::database::{Database, finish};
use crate::dedup::sql::{DEAD, InboxSql};

/// Dead letters of a consumer are counted up to this number, so that counting stays cheap.
pub const DEAD_LETTERS_COUNT_MAX: u64 = 10_000;

/// Time after which every process of a paused consumer has noticed.
const NOTICED: u32 = 2;

/// The pause of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) reason: String,
    /// Whether all processes have noticed.
    pub(super) is_noticed: bool,
}

/// Primary key.
pub(super) async fn pause(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumer: &str,
) -> Result<Option<Pause>, DbErr> {
    let now = inbox.now();
    let noticed = match inbox.backend() {
        DbBackend::Postgres => {
            format!("paused_at <= {now} - ({NOTICED} OPERATOR(pg_catalog.*) interval '1 second')")
        }
        DbBackend::MySql => format!("paused_at <= TIMESTAMPADD(SECOND, -{NOTICED}, {now})"),
        _ => format!("paused_at <= {now} - {NOTICED} * 1000000"),
    };
    let mut sql = inbox.sql(format!(
        "SELECT reason, CASE WHEN {noticed} THEN 1 ELSE 0 END AS is_noticed FROM {} WHERE consumer = ",
        inbox.pauses()
    ));
    sql.bind(inbox.key(consumer));
    let row = db.query_one_raw(sql.statement()).await?;
    row.map(|row| {
        Ok(Pause {
            reason: row.try_get("", "reason")?,
            is_noticed: row.try_get::<i32>("", "is_noticed")? == 1,
        })
    })
    .transpose()
}

/// Consumers per statement.
const CONSUMERS_MAX: usize = 100;

/// Open and marked dead letters of each of these consumers. Index on (consumer, created_at), at
/// most so many rows; one statement for each hundred consumers.
pub(super) async fn letters(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumers: &[String],
) -> Result<Vec<(u64, u64)>, DbErr> {
    let mut letters = vec![(0, 0); consumers.len()];
    for (chunk, letters) in consumers
        .chunks(CONSUMERS_MAX)
        .zip(letters.chunks_mut(CONSUMERS_MAX))
    {
        let mut sql = inbox.sql(String::new());
        for (place, consumer) in chunk.iter().enumerate() {
            let all = if place == 0 { "" } else { " UNION ALL " };
            sql.push(&format!(
                "{all}SELECT {place} AS place, status, count(*) AS letters FROM (SELECT status FROM {} WHERE consumer = ",
                inbox.dead_letters()
            ));
            sql.bind(inbox.key(consumer)).push(&format!(
                " LIMIT {DEAD_LETTERS_COUNT_MAX}) AS first_ones_{place} GROUP BY status"
            ));
        }
        for row in db.query_all_raw(sql.statement()).await? {
            let place = usize::try_from(row.try_get::<i32>("", "place")?).unwrap_or_default();
            let count = read_count(&row, "letters")?;
            if let Some((open, marked)) = letters.get_mut(place) {
                match row.try_get::<i16>("", "status")? {
                    0 => *open = count,
                    _ => *marked += count,
                }
            }
        }
    }
    Ok(letters)
}

/// Whether any table has a row of each of these consumers. The first part of each primary key, and
/// of the index of dead letters; one statement for each hundred of them.
pub(super) async fn of_any(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumers: &[String],
) -> Result<Vec<bool>, DbErr> {
    let tables = [
        inbox.messages(),
        inbox.sequences(),
        inbox.dead_letters(),
        inbox.pauses(),
    ];
    let mut has_rows = vec![false; consumers.len()];
    for (chunk, has_rows) in consumers
        .chunks(CONSUMERS_MAX)
        .zip(has_rows.chunks_mut(CONSUMERS_MAX))
    {
        let mut sql = inbox.sql(String::new());
        for (place, consumer) in chunk.iter().enumerate() {
            let all = if place == 0 { "" } else { " UNION ALL " };
            sql.push(&format!(
                "{all}SELECT {place} AS place FROM (SELECT 1 AS one) x{place} WHERE"
            ));
            for (number, table) in tables.iter().enumerate() {
                let or = if number == 0 { "" } else { " OR" };
                sql.push(&format!("{or} EXISTS (SELECT 1 FROM {table} WHERE consumer = "));
                sql.bind(inbox.key(consumer)).push(")");
            }
        }
        for row in db.query_all_raw(sql.statement()).await? {
            let place = usize::try_from(row.try_get::<i32>("", "place")?).unwrap_or_default();
            if let Some(has_rows) = has_rows.get_mut(place) {
                *has_rows = true;
            }
        }
    }
    Ok(has_rows)
}

/// Counts what the inbox remembers: the range of the consumer in each primary key, and in the index
/// of dead letters.
pub(super) async fn memory(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumer: &str,
) -> Result<MemoryRows, DbErr> {
    let micros = micros(inbox.backend(), "min(processed_at)");
    let mut sql = inbox.sql(format!(
        "SELECT status, count(*) AS messages, {micros} AS first_micros FROM {} WHERE consumer = ",
        inbox.messages()
    ));
    sql.bind(inbox.key(consumer)).push(" GROUP BY status");
    let mut rows = MemoryRows::default();
    for row in db.query_all_raw(sql.statement()).await? {
        let messages = read_count(&row, "messages")?;
        match row.try_get::<i16>("", "status")? {
            0 => rows.failed = messages,
            1 => {
                rows.handled = messages;
                rows.since = Some(read_time(&row, "first_micros")?);
            }
            _ => rows.dead = messages,
        }
    }
    rows.sequences = of_table(db, inbox, inbox.sequences(), consumer, "").await?;
    rows.dead_letters = of_table(db, inbox, inbox.dead_letters(), consumer, "").await?;
    Ok(rows)
}

/// Dead letters whose messages have this stream sequence or a later one.
pub(super) async fn letters_from(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumer: &str,
    stream_sequence: u64,
) -> Result<u64, DbErr> {
    let behind = format!(" AND stream_sequence >= {}", stream_sequence.cast_signed());
    of_table(db, inbox, inbox.dead_letters(), consumer, &behind).await
}

async fn of_table<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    table: &str,
    consumer: &str,
    and: &str,
) -> Result<u64, DbErr> {
    let mut sql = inbox.sql(format!(
        "SELECT count(*) AS entries FROM {table} WHERE consumer = "
    ));
    sql.bind(inbox.key(consumer)).push(and);
    let row = db.query_one_raw(sql.statement()).await?;
    row.map_or(Ok(0), |row| read_count(&row, "entries"))
}

/// Deletes the rows of a consumer, except dead letters, and except dead rows whose message is not
/// redelivered: the retry of its dead letter needs the row. Primary keys; the dead letters by their
/// index on (consumer, created_at).
pub(super) async fn forget(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumer: &str,
    stream_sequence: u64,
) -> Result<Replayed, DbErr> {
    let (db, inbox, consumer) = (db.clone(), inbox.clone(), consumer.to_owned());
    // A dropped `begin` would poison the pool.
    outbox_sea_orm::detached(async move {
        let tx = Database::inspect(db).await?.begin().await?;
        let forgotten = forget_in(&tx, &inbox, &consumer, stream_sequence).await;
        // A crash before the commit forgets nothing.
        finish(tx, forgotten).await
    })
    .await
}

async fn forget_in(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    consumer: &str,
    stream_sequence: u64,
) -> Result<Replayed, DbErr> {
    wait_for_handlers(tx, inbox, consumer).await?;
    let mut sql = inbox.sql(format!("DELETE FROM {} WHERE consumer = ", inbox.messages()));
    sql.bind(inbox.key(consumer));
    sql.push(&format!(
        " AND NOT (status = {DEAD} AND id IN (SELECT event_id FROM {} WHERE consumer = ",
        inbox.dead_letters()
    ));
    sql.bind(inbox.key(consumer))
        .push(" AND event_id IS NOT NULL AND stream_sequence < ")
        .bind(stream_sequence.cast_signed())
        .push("))");
    let messages = tx.execute_raw(sql.statement()).await?.rows_affected();
    let mut sql = inbox.sql(format!("DELETE FROM {} WHERE consumer = ", inbox.sequences()));
    sql.bind(inbox.key(consumer));
    let sequences = tx.execute_raw(sql.statement()).await?.rows_affected();
    Ok(Replayed { messages, sequences })
}

/// On MySQL and MariaDB a locking read waits for uncommitted inserted rows; an update or delete
/// passes over them. SQLite has one writer. On PostgreSQL, [`running`] was asked before.
async fn wait_for_handlers(tx: &DatabaseTransaction, inbox: &InboxSql, consumer: &str) -> Result<(), DbErr> {
    if inbox.backend() == DbBackend::MySql {
        for table in [inbox.messages(), inbox.sequences()] {
            of_table(tx, inbox, table, consumer, " FOR UPDATE").await?;
        }
    }
    Ok(())
}

/// The transactions that have written into the tables of the memory, of any consumer, and have not
/// ended. PostgreSQL only: elsewhere statements wait for uncommitted rows.
pub(super) async fn running(db: &DatabaseConnection, inbox: &InboxSql) -> Result<Vec<String>, DbErr> {
    if inbox.backend() != DbBackend::Postgres {
        return Ok(Vec::new());
    }
    let mut sql = inbox.sql(
        "SELECT DISTINCT virtualtransaction AS running FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted \
         AND pid <> pg_backend_pid() \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation IN (",
    );
    sql.push("to_regclass(")
        .bind(inbox.messages())
        .push(")::oid, to_regclass(")
        .bind(inbox.sequences())
        .push(")::oid)");
    let rows = db.query_all_raw(sql.statement()).await?;
    rows.iter().map(|row| row.try_get("", "running")).collect()
}

//! Events for measurements. SQL multiplies rows recorded through the public API.

use outbox_core::DomainEvent;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, record};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, Statement};
use serde::{Deserialize, Serialize};

use crate::servers::{Schema, count};
use crate::{Result, check};

pub(crate) const PAYLOAD_BYTES: u64 = 300;
pub(crate) const AGGREGATES: u64 = 1_000;
/// The first account id. All higher ids have the same number of digits.
const FIRST_ID: i64 = 1_000_000;
pub(crate) const CHUNK: u64 = 100_000;

#[derive(Clone, Debug, DomainEvent, Deserialize, Serialize)]
#[domain_event(aggregate = "account", name = "moved")]
pub(crate) struct Moved {
    #[domain_event(aggregate_id)]
    pub(crate) account_id: i64,
    balance: i64,
    note: String,
}

#[derive(Clone, Debug, DomainEvent, Serialize)]
#[domain_event(aggregate = "account", name = "seen", unsequenced)]
pub(crate) struct Seen {
    #[domain_event(aggregate_id)]
    account_id: i64,
    balance: i64,
    note: String,
}

pub(crate) fn account_id(n: u64) -> i64 {
    FIRST_ID + i64::try_from(n).unwrap_or_default()
}

fn note() -> String {
    "n".repeat(256)
}

impl Moved {
    pub(crate) fn new(account_id: i64, balance: i64) -> Self {
        Self {
            account_id,
            balance,
            note: note(),
        }
    }
}

impl Seen {
    pub(crate) fn new(account_id: i64, balance: i64) -> Self {
        Self {
            account_id,
            balance,
            note: note(),
        }
    }
}

/// Inserts messages, `rows` per transaction, rounded down to whole rounds. Ends with a checkpoint,
/// so that the measurement excludes writing these rows to disk.
pub(crate) async fn fill(outbox: &Schema, aggregates: u64, messages: u64, rows: u64) -> Result<()> {
    let db = &outbox.db;
    let tx = OutboxConnection::new(db.clone(), OutboxConfig::default())
        .begin()
        .await?;
    let events: Vec<Moved> = (0..aggregates).map(|n| Moved::new(account_id(n), 0)).collect();
    record(&tx, events).await?;
    tx.commit().await?;
    let bytes = count(db, "SELECT max(length(payload))::int8 AS n FROM outbox_messages").await?;
    check("bytes per payload", bytes, PAYLOAD_BYTES)?;
    multiply(db, aggregates, messages / aggregates, rows).await?;
    check("messages recorded", outbox.messages().await?, messages)?;
    let _ = db.execute_unprepared("CHECKPOINT").await;
    Ok(())
}

async fn multiply(db: &DatabaseConnection, aggregates: u64, rounds: u64, rows: u64) -> Result<()> {
    let columns = columns(db).await?;
    let expression = |column: &String| match column.as_str() {
        "id" => "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::int8), 12, '0') || '7' \
                 || lpad(to_hex(k % 4096), 3, '0') || '8' || right(md5(random()::text), 15))::uuid"
            .to_owned(),
        "sequence" => "t.sequence + k".to_owned(),
        "created_at" => "clock_timestamp()".to_owned(),
        column => format!("t.{column}"),
    };
    let expressions: Vec<String> = columns.iter().map(expression).collect();
    db.execute_unprepared("CREATE TABLE first_messages AS SELECT * FROM outbox_messages")
        .await?;
    let step = (rows / aggregates).max(1);
    let mut next = 1;
    while next < rounds {
        let last = (next + step).min(rounds) - 1;
        let insert = format!(
            "INSERT INTO outbox_messages ({}) SELECT {} FROM first_messages t \
             CROSS JOIN generate_series({next}::int8, {last}::int8) k ORDER BY k, t.row_id",
            columns.join(", "),
            expressions.join(", "),
        );
        db.execute_unprepared(&insert).await?;
        next = last + 1;
    }
    let heads = format!("UPDATE outbox_aggregates SET last_sequence = {rounds}");
    db.execute_unprepared(&heads).await?;
    db.execute_unprepared("DROP TABLE first_messages").await?;
    Ok(())
}

async fn columns(db: &DatabaseConnection) -> Result<Vec<String>> {
    let sql = "SELECT column_name::text AS name FROM information_schema.columns \
               WHERE table_schema = current_schema() AND table_name = 'outbox_messages' \
               AND is_identity = 'NO' AND is_generated = 'NEVER' ORDER BY ordinal_position";
    let rows = db
        .query_all_raw(Statement::from_string(DbBackend::Postgres, sql))
        .await?;
    Ok(rows
        .iter()
        .map(|row| row.try_get("", "name"))
        .collect::<Result<_, _>>()?)
}

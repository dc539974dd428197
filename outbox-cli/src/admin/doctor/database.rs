//! Reads facts for the database rules.
//!
//! Invariant: the queries read at most 1,000 indexed outbox rows and take no locks. Facts that
//! cannot be read are listed as unseen.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, QueryResult, Statement};
use time::OffsetDateTime;

/// Database facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DatabaseFacts {
    /// Seconds the database clock is ahead; negative if behind.
    pub clock_ahead: f64,
    /// Uncertainty of `clock_ahead` in seconds.
    pub clock_error: f64,
    /// Number of newest messages with a sequence beyond `outbox_aggregates`.
    pub ahead_of_aggregates: u64,
    pub(super) raise_numbers: String,
    /// Unreadable facts.
    pub unseen: Vec<String>,
}

/// Reads the facts of the database. `messages` and `aggregates` are quoted table names.
///
/// # Errors
///
/// `DbErr`. Facts without table rights go to `unseen`.
pub async fn database_facts(
    db: &DatabaseConnection,
    messages: &str,
    aggregates: &str,
) -> Result<DatabaseFacts, DbErr> {
    let mut facts = DatabaseFacts::default();
    read_clock(db, &mut facts).await?;
    read_numbers(db, messages, aggregates, &mut facts).await;
    Ok(facts)
}

const NEWEST: u32 = 1_000;

/// After a restore of `outbox_aggregates` alone, writers would assign sequences twice.
async fn read_numbers(db: &DatabaseConnection, messages: &str, aggregates: &str, facts: &mut DatabaseFacts) {
    // An index exists for each of the sort orders below. The subquery hides the limit from
    // PostgreSQL's planner, which may otherwise sort all rows.
    let (order, limit, on_conflict, alias) = match db.get_database_backend() {
        DbBackend::Postgres => (
            "id",
            format!("(SELECT {NEWEST})"),
            "ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = GREATEST(a.last_sequence, excluded.last_sequence), \
             last_row_id = GREATEST(a.last_row_id, excluded.last_row_id)",
            " AS a",
        ),
        DbBackend::MySql => (
            "row_id",
            NEWEST.to_string(),
            "ON DUPLICATE KEY UPDATE last_sequence = GREATEST(last_sequence, VALUES(last_sequence))",
            "",
        ),
        _ => (
            "row_id",
            NEWEST.to_string(),
            "ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = MAX(a.last_sequence, excluded.last_sequence)",
            " AS a",
        ),
    };
    let sql = format!(
        "SELECT COUNT(*) AS ahead FROM (SELECT aggregate_type, aggregate_id, sequence FROM {messages} \
         ORDER BY {order} DESC LIMIT {limit}) m LEFT JOIN {aggregates} a \
         ON a.aggregate_type = m.aggregate_type AND a.aggregate_id = m.aggregate_id \
         WHERE m.sequence > COALESCE(a.last_sequence, 0)"
    );
    let row = one(db, &sql).await;
    let ahead = row.and_then(|row| row.map_or(Ok(0), |row| row.try_get::<i64>("", "ahead")));
    match ahead {
        Ok(ahead) => facts.ahead_of_aggregates = ahead.unsigned_abs(),
        Err(error) => {
            let why = outbox::core::describe(&error);
            facts.unseen.push(format!(
                "the numbers of aggregates: {why}; GRANT SELECT ON {aggregates} to this login"
            ));
        }
    }
    let (column, row_id) = match db.get_database_backend() {
        DbBackend::Postgres => (", last_row_id", ", MAX(row_id)"),
        _ => ("", ""),
    };
    facts.raise_numbers = format!(
        "INSERT INTO {aggregates}{alias} (aggregate_type, aggregate_id, last_sequence{column}, recorded_at) \
         SELECT aggregate_type, aggregate_id, MAX(sequence){row_id}, MAX(created_at) FROM {messages} WHERE sequence IS NOT NULL \
         GROUP BY aggregate_type, aggregate_id {on_conflict}"
    );
}

/// Whether server or database settings make every new session read-only, so relays cannot renew
/// leases. Settings of the login and standbys are ignored. A session that was opened read-only
/// detects only the database setting.
///
/// # Errors
///
/// `DbErr`.
pub async fn only_reads(db: &DatabaseConnection) -> Result<bool, DbErr> {
    let sql = match db.get_database_backend() {
        DbBackend::Postgres => {
            // A database setting overrides the server setting.
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_settings \
             WHERE name = 'default_transaction_read_only' AND setting = 'on' AND source IN \
             ('command line', 'configuration file', 'environment variable', 'global', 'database')) \
             OR COALESCE((SELECT option ~* '=(on|t|tr|tru|true|y|ye|yes|1)$' \
             FROM pg_catalog.pg_db_role_setting s \
             LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase, \
             pg_catalog.unnest(s.setconfig) AS option \
             WHERE s.setrole = '0' AND (s.setdatabase = '0' OR d.datname = pg_catalog.current_database()) \
             AND option ~ '^default_transaction_read_only=' \
             ORDER BY s.setdatabase = '0' LIMIT 1), false) AS only_reads"
        }
        DbBackend::MySql => "SELECT @@global.read_only <> 0 AS only_reads",
        _ => return Ok(false),
    };
    let row = one(db, sql).await?;
    row.map_or(Ok(false), |row| row.try_get("", "only_reads"))
}

async fn read_clock(db: &DatabaseConnection, facts: &mut DatabaseFacts) -> Result<(), DbErr> {
    let sql = match db.get_database_backend() {
        DbBackend::Postgres => {
            "SELECT CAST(extract(epoch FROM pg_catalog.clock_timestamp()) AS double precision) AS now"
        }
        DbBackend::MySql => "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) AS DOUBLE) AS now",
        _ => return Ok(()),
    };
    let asked = seconds(OffsetDateTime::now_utc());
    let row = one(db, sql).await?;
    let answered = seconds(OffsetDateTime::now_utc());
    if let Some(row) = row {
        facts.clock_ahead = row.try_get::<f64>("", "now")? - f64::midpoint(asked, answered);
        facts.clock_error = (answered - asked) / 2.0;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of this century fit")]
fn seconds(time: OffsetDateTime) -> f64 {
    (time.unix_timestamp_nanos() / 1_000) as f64 / 1e6
}

async fn one(db: &DatabaseConnection, sql: &str) -> Result<Option<QueryResult>, DbErr> {
    db.query_one_raw(Statement::from_string(db.get_database_backend(), sql))
        .await
}

/// How long an inbox keeps rows, from its newest row; `None` without rows. `table` is a quoted
/// name.
///
/// # Errors
///
/// `DbErr`, also if the table is missing.
pub async fn inbox_memory(
    db: &DatabaseConnection,
    table: &str,
    consumer: &str,
) -> Result<Option<Duration>, DbErr> {
    let backend = db.get_database_backend();
    let (seconds, name) = match backend {
        DbBackend::Postgres => (
            "CAST(extract(epoch FROM expires_at - processed_at) AS double precision)",
            "$1",
        ),
        DbBackend::MySql => (
            "CAST(TIMESTAMPDIFF(MICROSECOND, processed_at, expires_at) / 1000000 AS DOUBLE)",
            "?",
        ),
        _ => ("CAST(expires_at - processed_at AS REAL) / 1000000", "?"),
    };
    let sql = format!(
        "SELECT {seconds} AS seconds FROM {table} WHERE consumer = {name} ORDER BY expires_at DESC LIMIT 1"
    );
    let consumer: sea_orm::Value = match backend {
        DbBackend::MySql => consumer.as_bytes().to_vec().into(),
        _ => consumer.into(),
    };
    let row = db
        .query_one_raw(Statement::from_sql_and_values(backend, sql, [consumer]))
        .await?;
    let seconds = row.map(|row| row.try_get::<f64>("", "seconds")).transpose()?;
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
}

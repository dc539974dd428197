//! Reads what a database says of itself: its clock, what is open in it, and what it keeps.
//!
//! Invariant: system views only, and at most 1,000 rows by an index; no row of the outbox is locked.
//! What the login may not see is left out, and named.

use std::time::Duration;

use outbox_inbox::DatabaseAnswer;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, QueryResult, Statement};
use time::OffsetDateTime;

use super::Check;

/// Where autovacuum may be off, beside tables.
pub(super) const SERVER: &str = "the server";

/// What a database says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DatabaseFacts {
    /// How far its clock is ahead of that of this machine, in seconds; negative if it is behind.
    pub clock_ahead: f64,
    /// How exact that is, in seconds: half of the time that the answer took.
    pub clock_error: f64,
    /// The transaction of another session that has been open longest.
    pub oldest_transaction: Option<OldTransaction>,
    /// The oldest prepared transaction.
    pub oldest_prepared: Option<OldTransaction>,
    /// Replication slots.
    pub slots: Vec<ReplicationSlot>,
    /// Where autovacuum is off: `the server`, or names of tables.
    pub without_autovacuum: Vec<String>,
    /// Tables of which row-level security filters the rows for this login.
    pub row_security: Vec<String>,
    /// How many of the newest messages have a higher number than `outbox_aggregates` has assigned.
    pub ahead_of_aggregates: u64,
    /// The statement that sets `outbox_aggregates` to the highest numbers.
    pub(super) raise_numbers: String,
    /// What this login may not see.
    pub unseen: Vec<String>,
    /// The checks that could not be made without it.
    pub not_checked: Vec<Check>,
}

/// A transaction that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OldTransaction {
    /// What the server calls its session, or the name of a prepared one.
    pub id: String,
    /// Whose it is, if the server says so.
    pub owner: Option<String>,
    /// How long it has been open.
    pub age: Duration,
    /// The statement that ends it.
    pub remedy: String,
}

/// A replication slot of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicationSlot {
    /// Its name.
    pub name: String,
    /// Whether something reads it.
    pub is_active: bool,
    /// Bytes of the server's disk that it keeps; `None` if that is not known.
    pub retained: Option<u64>,
}

/// Reads the facts. `tables` are the outbox's tables as SQL writes them.
///
/// # Errors
///
/// The database's error.
pub async fn database_facts(db: &DatabaseConnection, tables: &[String]) -> Result<DatabaseFacts, DbErr> {
    let mut facts = DatabaseFacts::default();
    read_clock(db, &mut facts).await?;
    match db.get_database_backend() {
        DbBackend::Postgres => of_postgres(db, tables, &mut facts).await?,
        DbBackend::MySql => of_mysql(db, &mut facts).await?,
        _ => {}
    }
    if let [messages, aggregates, ..] = tables {
        read_numbers(db, messages, aggregates, &mut facts).await;
    }
    Ok(facts)
}

/// How many of the newest messages [`read_numbers`] compares.
const NEWEST: u32 = 1_000;

/// Compares the sequence of each of the newest messages with the last sequence of its aggregate.
/// If `outbox_aggregates` alone was restored from a backup, writers assign sequences twice.
async fn read_numbers(db: &DatabaseConnection, messages: &str, aggregates: &str, facts: &mut DatabaseFacts) {
    // An index has each order. If PostgreSQL knows the limit and has old statistics, PostgreSQL
    // sorts all rows.
    let (order, limit, on_conflict, alias) = match db.get_database_backend() {
        DbBackend::Postgres => (
            "id",
            format!("(SELECT {NEWEST})"),
            "ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = GREATEST(a.last_sequence, excluded.last_sequence)",
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
            facts.not_checked.push(Check::Numbers);
            let why = outbox_core::describe(&error);
            facts.unseen.push(format!(
                "the numbers of aggregates: {why}; GRANT SELECT ON {aggregates} to this login"
            ));
        }
    }
    facts.raise_numbers = format!(
        "INSERT INTO {aggregates}{alias} (aggregate_type, aggregate_id, last_sequence, recorded_at) \
         SELECT aggregate_type, aggregate_id, MAX(sequence), MAX(created_at) FROM {messages} WHERE sequence IS NOT NULL \
         GROUP BY aggregate_type, aggregate_id {on_conflict}"
    );
}

/// Whether every new session of a database can only read by a setting of the server or of the
/// database, so that no relay renews its leases there. Settings of this login alone do not count,
/// and neither does a standby, whose relays may use the primary. A session that was opened with the
/// setting itself sees it of the database and not of the server.
///
/// # Errors
///
/// The database's error.
pub async fn only_reads(db: &DatabaseConnection) -> Result<bool, DbErr> {
    let sql = match db.get_database_backend() {
        DbBackend::Postgres => {
            // The setting of a database precedes that of all databases.
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
        // A file has the clock of this machine.
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

fn transaction(row: &QueryResult) -> Result<OldTransaction, DbErr> {
    let age: f64 = row.try_get("", "age")?;
    Ok(OldTransaction {
        id: row.try_get("", "id")?,
        owner: row.try_get("", "owner")?,
        age: Duration::try_from_secs_f64(age).unwrap_or_default(),
        remedy: row.try_get("", "remedy")?,
    })
}

async fn of_postgres(
    db: &DatabaseConnection,
    tables: &[String],
    facts: &mut DatabaseFacts,
) -> Result<(), DbErr> {
    // A login sees no times of other users' sessions, unless it is a member of `pg_read_all_stats`.
    let hidden = "SELECT NOT pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'MEMBER') AS hidden";
    if let Some(row) = one(db, hidden).await?
        && row.try_get("", "hidden")?
    {
        facts.not_checked.push(Check::LongTransaction);
        facts.unseen.push(
            "transactions of other users: GRANT pg_read_all_stats to this login to have them looked at"
                .to_owned(),
        );
    }
    let open = "SELECT CAST(pid AS text) AS id, CAST(usename AS text) AS owner, 'SELECT pg_terminate_backend(' || pid::text || ')' AS remedy, \
                CAST(extract(epoch FROM pg_catalog.now() - xact_start) AS double precision) AS age FROM pg_stat_activity \
                WHERE datname = pg_catalog.current_database() AND backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid() \
                AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1";
    facts.oldest_transaction = one(db, open).await?.as_ref().map(transaction).transpose()?;
    let prepared = "SELECT gid AS id, CAST(owner AS text) AS owner, 'ROLLBACK PREPARED ' || pg_catalog.quote_literal(gid) AS remedy, \
                    CAST(extract(epoch FROM pg_catalog.now() - prepared) AS double precision) AS age FROM pg_prepared_xacts \
                    WHERE database = pg_catalog.current_database() ORDER BY prepared LIMIT 1";
    facts.oldest_prepared = one(db, prepared).await?.as_ref().map(transaction).transpose()?;
    // A standby has no position of its own that could be compared.
    let slots = "SELECT CAST(slot_name AS text) AS name, active, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
                 ELSE CAST(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn) AS bigint) END AS retained \
                 FROM pg_replication_slots ORDER BY slot_name";
    for row in db
        .query_all_raw(Statement::from_string(DbBackend::Postgres, slots))
        .await?
    {
        let retained: Option<i64> = row.try_get("", "retained")?;
        facts.slots.push(ReplicationSlot {
            name: row.try_get("", "name")?,
            is_active: row.try_get("", "active")?,
            retained: retained.and_then(|bytes| u64::try_from(bytes).ok()),
        });
    }
    let server = one(
        db,
        "SELECT pg_catalog.current_setting('autovacuum') AS autovacuum",
    )
    .await?;
    if let Some(row) = server
        && row.try_get::<String>("", "autovacuum")? == "off"
    {
        facts.without_autovacuum.push(SERVER.to_owned());
    }
    for table in tables {
        let sql = "SELECT EXISTS (SELECT FROM pg_class c, pg_catalog.unnest(c.reloptions) AS option WHERE c.oid = pg_catalog.to_regclass($1)::oid \
                   AND option ~ '^autovacuum_enabled=(off|false|no|0|f|n)') AS is_off";
        let asked = Statement::from_sql_and_values(DbBackend::Postgres, sql, [table.as_str().into()]);
        if let Some(row) = db.query_one_raw(asked).await?
            && row.try_get("", "is_off")?
        {
            facts.without_autovacuum.push(table.clone());
        }
        let sql =
            "SELECT pg_catalog.to_regclass($1) IS NOT NULL AND pg_catalog.row_security_active($1) AS is_on";
        let asked = Statement::from_sql_and_values(DbBackend::Postgres, sql, [table.as_str().into()]);
        if let Some(row) = db.query_one_raw(asked).await?
            && row.try_get("", "is_on")?
        {
            facts.row_security.push(table.clone());
        }
    }
    Ok(())
}

async fn of_mysql(db: &DatabaseConnection, facts: &mut DatabaseFacts) -> Result<(), DbErr> {
    // The view has the time zone of the server, whatever that of the session is. A prepared transaction has no session.
    let open = |is_prepared: bool| {
        let (session, remedy) = match is_prepared {
            true => ("= 0", "'XA RECOVER, then XA ROLLBACK of what it names'"),
            false => (
                "NOT IN (0, CONNECTION_ID())",
                "CONCAT('KILL ', trx_mysql_thread_id)",
            ),
        };
        format!(
            "SELECT CAST(trx_mysql_thread_id AS CHAR) AS id, NULL AS owner, {remedy} AS remedy, \
             CAST(TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) AS DOUBLE) AS age \
             FROM information_schema.innodb_trx WHERE trx_mysql_thread_id {session} ORDER BY trx_started LIMIT 1"
        )
    };
    match one(db, &open(false)).await {
        Ok(row) => {
            facts.oldest_transaction = row.as_ref().map(transaction).transpose()?;
            let prepared = one(db, &open(true)).await?;
            facts.oldest_prepared = prepared.as_ref().map(transaction).transpose()?;
        }
        Err(error) if matches!(DatabaseAnswer::of(&error), Some(DatabaseAnswer::Denied(_))) => {
            facts
                .not_checked
                .extend([Check::LongTransaction, Check::PreparedTransaction]);
            facts.unseen.push(
                "open transactions: GRANT PROCESS ON *.* to this login to have them looked at".to_owned(),
            );
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// How long the inbox of a consumer remembers what it has handled, by the newest row of its table; `None` if there is none. `table` is the table of inbox
/// messages as SQL writes it.
///
/// # Errors
///
/// The database's error, also if the table is missing.
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
    // Reads the index of `expires_at` from its end.
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

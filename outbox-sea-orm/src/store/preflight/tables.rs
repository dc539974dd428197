//! Checks the tables' version and the relay's privileges, by statements like the relay's statements
//! that match no row. Locks nothing, except briefly the file on SQLite.

use outbox_core::message::PARTITIONS;
use outbox_core::{SetupKind, StoreError};
use sea_orm::{DbBackend, DbErr, Statement};

use crate::sql::Key;
use crate::store::fetch::partition;
use crate::store::fetch::sql::{self, Scope};
use crate::store::session::Session;
use crate::store::{failed, has_code, refuses_to_write};

pub(super) const CONTEXT: &str = "the database could not be checked";

/// `place`: PostgreSQL's `ctid`. `written`: column of the test update. `does`: privileges besides
/// SELECT.
struct Table<'a> {
    name: &'a str,
    columns: &'static str,
    place: &'static str,
    written: &'static str,
    does: &'static [&'static str],
}

type Lacking<'a> = (&'a str, Vec<&'static str>);

const INSERT: &str = "INSERT";
const UPDATE: &str = "UPDATE";
const DELETE: &str = "DELETE";

pub(super) async fn check(db: &Session, deletes: bool) -> Result<(), StoreError> {
    let of_messages: &[_] = if deletes { &[UPDATE, DELETE] } else { &[UPDATE] };
    let place_of_blocks = match db.dialect.backend {
        // For a column of an unknown type, the driver runs a query with unqualified operators.
        DbBackend::Postgres => ", ctid::text",
        _ => "",
    };
    let tables = [
        Table {
            name: &db.dialect.messages,
            columns: "row_id, id, event_id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, \
                      subject, content_type, payload, headers, dedup_key, created_at, available_at, published_at, status, \
                      attempts, failures, last_error",
            place: "",
            written: "status",
            does: of_messages,
        },
        Table {
            name: &db.dialect.blocks,
            columns: "aggregate_type, aggregate_id, partition_no, blocked_until, halted_by",
            place: place_of_blocks,
            written: "blocked_until",
            does: &[INSERT, UPDATE, DELETE],
        },
        Table {
            name: &db.dialect.leases,
            columns: "partition_no, owner, epoch, expires_at",
            place: "",
            written: "epoch",
            does: &[UPDATE],
        },
        Table {
            name: &db.dialect.relays,
            columns: "owner, expires_at, fitness, name, mode, stream, subjects, source, retention_seconds, version, error_class, error, \
                      failing_since",
            place: "",
            written: "fitness",
            does: &[INSERT, UPDATE, DELETE],
        },
        Table {
            name: &db.dialect.pauses,
            columns: "aggregate_type, reason, paused_by, paused_at, ends_at",
            place: "",
            written: "ends_at",
            does: &[UPDATE, DELETE],
        },
        Table {
            name: &db.dialect.dedup_keys,
            columns: "dedup_key, recorded_at",
            place: "",
            written: "recorded_at",
            does: &[UPDATE, DELETE],
        },
    ];
    let (mut lacking, mut words) = (Vec::new(), None);
    for table in &tables {
        check_table(db, table, &mut lacking, &mut words).await?;
    }
    let heads = format!(
        "SELECT aggregate_type, aggregate_id, last_sequence, recorded_at FROM {} LIMIT 0",
        db.dialect.aggregates
    );
    match run(db, &heads).await {
        Err(Refused::Missing(error)) => return Err(missing(&db.dialect.aggregates, &error)),
        Err(Refused::Otherwise(error)) => return Err(failed(CONTEXT)(error)),
        _ => {}
    }
    match words {
        Some(words) => Err(denied(db, &lacking, &words).await?),
        None => check_indexes(db).await,
    }
}

async fn check_table<'a>(
    db: &Session,
    table: &Table<'a>,
    lacking: &mut Vec<Lacking<'a>>,
    words: &mut Option<String>,
) -> Result<(), StoreError> {
    let Table {
        name,
        columns,
        place,
        written,
        ..
    } = table;
    let mut denied = Vec::new();
    for right in ["SELECT"].iter().chain(table.does) {
        // SQLite has no privileges. One UPDATE tests whether the file is writable.
        if db.dialect.backend == DbBackend::Sqlite && !matches!(*right, "SELECT" | UPDATE) {
            continue;
        }
        let sql = match *right {
            INSERT => format!("INSERT INTO {name} ({columns}) SELECT {columns} FROM {name} WHERE 1 = 0"),
            UPDATE => format!("UPDATE {name} SET {written} = {written} WHERE 1 = 0"),
            DELETE => format!("DELETE FROM {name} WHERE 1 = 0"),
            _ => format!("SELECT {columns}{place} FROM {name} LIMIT 0"),
        };
        match run(db, &sql).await {
            Ok(()) => {}
            Err(Refused::Denied(error)) => {
                denied.push(*right);
                words.get_or_insert(error.to_string());
            }
            Err(Refused::Missing(error)) => return Err(missing(name, &error)),
            Err(Refused::ReadOnly(error)) => return Err(only_reads(db.dialect.backend, error)),
            Err(Refused::Otherwise(error)) => return Err(failed(CONTEXT)(error)),
        }
    }
    if !denied.is_empty() {
        lacking.push((*name, denied));
    }
    Ok(())
}

enum Refused {
    Missing(DbErr),
    Denied(DbErr),
    ReadOnly(DbErr),
    Otherwise(DbErr),
}

const MISSING: [&str; 6] = ["42P01", "42703", "3F000", "42S02", "42S22", "1"];

const DENIED: [&str; 2] = ["42501", "42000"];

async fn run(db: &Session, sql: &str) -> Result<(), Refused> {
    let statement = Statement::from_string(db.dialect.backend, sql);
    match db.execute(statement).await {
        Ok(_) => Ok(()),
        Err(error) if refuses_to_write(&error) => Err(Refused::ReadOnly(error)),
        Err(error) if has_code(&error, &MISSING) => Err(Refused::Missing(error)),
        Err(error) if has_code(&error, &DENIED) => Err(Refused::Denied(error)),
        Err(error) => Err(Refused::Otherwise(error)),
    }
}

/// A read-only server may be in a failover, so the relay waits. A file needs an operator.
fn only_reads(backend: DbBackend, error: DbErr) -> StoreError {
    match backend {
        DbBackend::Sqlite => StoreError::setup(
            SetupKind::Setting,
            format!("the database file is read-only ({error})"),
            "open the file for writing, as a user with write permission on the file and its folder",
        ),
        _ => failed(
            "the database is read-only, like a replica; unless a failover is in progress, connect the relay to the primary, as a user with read-write transactions",
        )(error),
    }
}

const MIGRATE: &str =
    "run the migration of outbox-sea-orm (`outbox::migrate`, `outbox_sea_orm::migrate`, or docs/sql)";

fn missing(table: &str, error: &DbErr) -> StoreError {
    let seen = format!(
        "table {table} is missing, from an older version, or in a schema that this user may not use ({})",
        outbox_core::describe(error)
    );
    StoreError::setup(SetupKind::Tables, seen, MIGRATE)
}

async fn denied(db: &Session, lacking: &[Lacking<'_>], words: &str) -> Result<StoreError, StoreError> {
    let user = match db.dialect.backend {
        DbBackend::MySql => {
            "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
        }
        _ => "SELECT quote_ident(current_user)",
    };
    let user = text(db, user).await.map_err(failed(CONTEXT))?;
    let mut grants = Vec::new();
    if db.dialect.backend == DbBackend::Postgres
        && let Some((schema, _)) = db.dialect.messages.split_once('.')
    {
        let may = format!(
            "SELECT has_schema_privilege('{}', 'USAGE')::text",
            schema.trim_matches('"')
        );
        if text(db, &may).await.map_err(failed(CONTEXT))? != "true" {
            grants.push(format!("GRANT USAGE ON SCHEMA {schema} TO {user}"));
        }
    }
    for (table, rights) in lacking {
        grants.push(format!("GRANT {} ON {table} TO {user}", rights.join(", ")));
    }
    Ok(StoreError::setup(
        SetupKind::Rights,
        format!("the relay's user lacks rights on the tables ({words})"),
        format!("as table owner, run: {};", grants.join("; ")),
    ))
}

/// On MySQL and SQLite, statements with index hints fail without the index.
async fn check_indexes(db: &Session) -> Result<(), StoreError> {
    if db.dialect.backend == DbBackend::Postgres {
        return Ok(());
    }
    let partitions: Vec<i64> = (0..i64::from(PARTITIONS)).collect();
    let scope = Scope {
        partitions: &partitions,
        in_flight: &[],
        limit: 0,
    };
    let key = Key {
        aggregate_type: Vec::new(),
        aggregate_id: Vec::new(),
    };
    let first = &partitions[..1];
    for statement in [
        sql::scan(&db.dialect, scope),
        partition::sql::first_pending(&db.dialect, first, 0),
        partition::sql::first_unsequenced(&db.dialect, first, 0, &[]),
        sql::waiting_row_ids_of(&db.dialect, &[key], 0),
        partition::sql::ended_blocks(
            &db.dialect,
            Scope {
                partitions: first,
                ..scope
            },
            0,
            &[],
        ),
    ] {
        match db.all(statement).await {
            Ok(_) => {}
            Err(error) if has_code(&error, &MISSING) || has_code(&error, &DENIED) => {
                return Err(missing(&db.dialect.messages, &error));
            }
            Err(error) => return Err(failed(CONTEXT)(error)),
        }
    }
    Ok(())
}

pub(super) async fn text(db: &Session, sql: &str) -> Result<String, DbErr> {
    let statement = Statement::from_string(db.dialect.backend, sql);
    let row = db
        .one(statement)
        .await?
        .ok_or_else(|| DbErr::RecordNotFound(sql.to_owned()))?;
    row.try_get_by_index(0)
}

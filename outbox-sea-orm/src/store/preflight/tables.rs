//! Checks the tables' version and the relay's privileges with statements that match no row. Locks
//! nothing, except briefly the file on SQLite.

use outbox_core::message::PARTITIONS;
use outbox_core::{SetupKind, StoreError};
use sea_orm::{DbBackend, DbErr, Statement};

use crate::sql::{Dialect, Key};
use crate::store::fetch::partition;
use crate::store::fetch::sql::{self, Scope};
use crate::store::session::Session;
use crate::store::{failed, has_code, refuses_to_write};

pub(super) const CONTEXT: &str = "the database could not be checked";

/// `does`: privileges besides SELECT.
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    columns: &'static str,
    does: &'static [&'static str],
}

const INSERT: &str = "INSERT";
const UPDATE: &str = "UPDATE";
const DELETE: &str = "DELETE";

pub(super) fn tables(dialect: &Dialect, deletes: bool) -> [Table<'_>; 6] {
    [
        Table {
            name: &dialect.messages,
            columns: "row_id, id, event_id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, \
                      subject, content_type, payload, headers, dedup_key, created_at, available_at, published_at, status, \
                      attempts, failures, last_error",
            does: if deletes { &[UPDATE, DELETE] } else { &[UPDATE] },
        },
        Table {
            name: &dialect.blocks,
            columns: "aggregate_type, aggregate_id, partition_no, blocked_until, halted_by",
            does: &[INSERT, UPDATE, DELETE],
        },
        Table {
            name: &dialect.leases,
            columns: "partition_no, owner, epoch, expires_at",
            does: &[UPDATE],
        },
        Table {
            name: &dialect.relays,
            columns: "owner, expires_at, fitness, name, mode, stream, subjects, source, retention_seconds, version, error_class, error, \
                      failing_since",
            does: &[INSERT, UPDATE, DELETE],
        },
        Table {
            name: &dialect.pauses,
            columns: "aggregate_type, reason, paused_by, paused_at, ends_at",
            does: &[UPDATE, DELETE],
        },
        Table {
            name: &dialect.dedup_keys,
            columns: "dedup_key, recorded_at",
            does: &[UPDATE, DELETE],
        },
    ]
}

pub(super) async fn check(db: &Session, deletes: bool) -> Result<(), StoreError> {
    let (mut grants, mut refusal) = (Vec::new(), None);
    for table in &tables(&db.dialect, deletes) {
        let mut lacking = Vec::new();
        for right in ["SELECT"].iter().chain(table.does) {
            if let Some(error) = denied(db, table, right).await? {
                lacking.push(*right);
                refusal = refusal.or(Some(error));
            }
        }
        if !lacking.is_empty() {
            grants.push(format!("{} ON {}", lacking.join(", "), table.name));
        }
    }
    let aggregates = Table {
        name: &db.dialect.aggregates,
        columns: "aggregate_type, aggregate_id, last_sequence, recorded_at",
        does: &[],
    };
    // Only writers need rights on this table.
    denied(db, &aggregates, "SELECT").await?;
    match refusal {
        Some(error) => Err(without_rights(db, grants, &error).await?),
        None => check_indexes(db).await,
    }
}

/// Returns the error if the login lacks the right.
async fn denied(db: &Session, table: &Table<'_>, right: &str) -> Result<Option<DbErr>, StoreError> {
    let (Table { name, columns, .. }, backend) = (table, db.dialect.backend);
    let column = columns.rsplit(' ').next().unwrap_or_default();
    let sql = match right {
        // SQLite has no privileges. One UPDATE tests whether the file is writable.
        INSERT | DELETE if backend == DbBackend::Sqlite => return Ok(None),
        INSERT => format!("INSERT INTO {name} ({columns}) SELECT {columns} FROM {name} WHERE 1 = 0"),
        UPDATE => format!("UPDATE {name} SET {column} = {column} WHERE 1 = 0"),
        DELETE => format!("DELETE FROM {name} WHERE 1 = 0"),
        // The store deletes blocks by their place.
        _ if backend == DbBackend::Postgres && *name == db.dialect.blocks => {
            format!("SELECT {columns}, ctid::text FROM {name} LIMIT 0")
        }
        _ => format!("SELECT {columns} FROM {name} LIMIT 0"),
    };
    match db.execute(Statement::from_string(backend, sql)).await {
        Ok(_) => Ok(None),
        Err(error) if refuses_to_write(&error) => Err(only_reads(backend, error)),
        Err(error) if has_code(&error, &MISSING) => Err(missing(name, &error)),
        Err(error) if has_code(&error, &DENIED) => Ok(Some(error)),
        Err(error) => Err(failed(CONTEXT)(error)),
    }
}

const MISSING: [&str; 6] = ["42P01", "42703", "3F000", "42S02", "42S22", "1"];

const DENIED: [&str; 2] = ["42501", "42000"];

/// A read-only server may be in a failover, so the relay retries. A read-only SQLite file is a
/// set-up error.
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

async fn without_rights(
    db: &Session,
    mut grants: Vec<String>,
    error: &DbErr,
) -> Result<StoreError, StoreError> {
    let user = match db.dialect.backend {
        DbBackend::MySql => {
            "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
        }
        _ => "SELECT quote_ident(current_user)",
    };
    let user = text(db, user).await.map_err(failed(CONTEXT))?;
    if db.dialect.backend == DbBackend::Postgres
        && let Some((schema, _)) = db.dialect.messages.split_once('.')
    {
        let may = format!(
            "SELECT has_schema_privilege('{}', 'USAGE')::text",
            schema.trim_matches('"')
        );
        if text(db, &may).await.map_err(failed(CONTEXT))? != "true" {
            grants.insert(0, format!("USAGE ON SCHEMA {schema}"));
        }
    }
    let grants: Vec<String> = grants
        .iter()
        .map(|grant| format!("GRANT {grant} TO {user}"))
        .collect();
    Ok(StoreError::setup(
        SetupKind::Rights,
        format!("the relay's user lacks rights on the tables ({error})"),
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

//! `outbox migrate`: lists migrations, prints SQL, and with `--yes` applies it.
//!
//! Tables created by other means stay untouched, because their version is unknown.

use crate::admin::{Column, Columns};
use clap::{Args, ValueEnum};
use outbox::inbox::migration as of_inbox;
use outbox::sea_orm::migration::{self as of_outbox, writers};
use outbox::sea_orm::{DatabaseAnswer, TableNames};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, DbErr, Statement};
use serde::Serialize;
use std::fmt;

use super::arguments::PlaceArguments;
use super::confirm::ConfirmArguments;
use super::place::Place;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say};

/// Arguments of `outbox migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The tables. May be repeated.
    #[arg(long = "tables", value_name = "PART", value_enum, default_value = "outbox")]
    pub parts: Vec<PartArgument>,
    /// Print the SQL only.
    #[arg(long, conflicts_with = "yes")]
    pub sql: bool,
    /// Apply missing migrations, and record them.
    #[arg(long)]
    pub yes: bool,
    /// Confirmation options.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

/// Table group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartArgument {
    /// The outbox.
    Outbox,
    /// `outbox_record` for services in other languages. Needs the outbox.
    Writers,
    /// The inbox.
    Inbox,
}

impl fmt::Display for PartArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl PartArgument {
    /// The migration table of outbox, writers or inbox, and a table that its migrations create.
    fn tables(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Outbox => ("outbox_migrations", Some("outbox_messages")),
            Self::Writers => ("outbox_writer_migrations", None),
            Self::Inbox => ("inbox_migrations", Some("inbox_messages")),
        }
    }

    fn versions(self, names: &TableNames) -> Vec<String> {
        match self {
            Self::Outbox => of_outbox::versions(names),
            Self::Writers => writers::versions(names),
            Self::Inbox => of_inbox::versions(names),
        }
    }

    fn sql(self, backend: DbBackend, names: &TableNames) -> Result<String, CommandError> {
        let sql = match self {
            Self::Outbox => of_outbox::sql(backend, names),
            Self::Writers => writers::sql(backend, names),
            Self::Inbox => of_inbox::sql(backend, names),
        };
        sql.map_err(CommandError::configuration)
    }

    /// Applies missing migrations under a lock, so concurrent programs are safe. A crash leaves
    /// nothing incomplete; on MySQL and MariaDB, a second call completes the rest.
    async fn make(self, db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
        match self {
            Self::Outbox => of_outbox::migrate_with(db, names).await,
            Self::Writers => writers::migrate_with(db, names).await,
            Self::Inbox => of_inbox::migrate_with(db, names).await,
        }
    }
}

impl MigrateCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let mut place = Place::open_to_make(&self.place).await?;
        if !self.sql {
            place = place.for_change();
        }
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let db = place.store.connection();
        if self.sql {
            for part in &self.parts {
                let sql = part.sql(db.get_database_backend(), &names)?;
                output::write(&sql)?;
            }
            return Ok(Outcome::Done);
        }
        let missing = |rows: &[MigrationRow]| {
            let missing = rows.iter().filter(|row| row.state == MigrationState::Missing);
            missing.count().try_into().unwrap_or(u64::MAX)
        };
        let mut rows = Vec::new();
        for part in &self.parts {
            part.sql(db.get_database_backend(), &names)?;
            rows.extend(place.ask(look(db, &names, *part)).await?);
        }
        if let (Some(row), true) = (
            rows.iter().find(|row| row.state == MigrationState::Foreign),
            self.yes,
        ) {
            return Err(CommandError::failed(format!(
                "the tables of part `{}` exist, and migration `{}` is not recorded in {}: they were created by a SeaORM migrator, or by SQL of another \
                 version; migrate with the same tool",
                row.part,
                row.migration,
                row.part.tables().0
            )));
        }
        let is_missing = |row: &MigrationRow| row.state == MigrationState::Missing;
        if self.yes && rows.iter().any(is_missing) {
            self.confirm.check(&place, async { Ok(missing(&rows)) }).await?;
            for part in &self.parts {
                place.carry_out(part.make(db, &names)).await?;
            }
            rows.clear();
            for part in &self.parts {
                rows.extend(place.ask(look(db, &names, *part)).await?);
            }
        }
        if self.yes && rows.iter().all(|row| row.state == MigrationState::Made) {
            // Restores missing lease rows, such as after a database restore.
            for part in &self.parts {
                if matches!(part, PartArgument::Outbox) {
                    place.ask(part.make(db, &names)).await?;
                }
            }
        }
        output::list(self.place.output, &rows)?;
        if rows.iter().any(is_missing) {
            say("nothing was created; `--sql` prints the SQL, `--yes` applies it");
            return Ok(Outcome::Degraded);
        }
        let is_foreign = rows.iter().any(|row| row.state == MigrationState::Foreign);
        Ok(if is_foreign {
            Outcome::Degraded
        } else {
            Outcome::Done
        })
    }
}

async fn look(
    db: &DatabaseConnection,
    names: &TableNames,
    part: PartArgument,
) -> Result<Vec<MigrationRow>, DbErr> {
    let backend = db.get_database_backend();
    let (noted_in, made) = part.tables();
    let sql = format!("SELECT version FROM {}", names.table(backend, noted_in));
    let noted: Vec<String> = match db.query_all_raw(Statement::from_string(backend, sql)).await {
        Ok(rows) => rows
            .iter()
            .map(|row| row.try_get("", "version"))
            .collect::<Result<_, _>>()?,
        Err(error) if is_absent(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    let exists = match made {
        Some(table) => exists(db, &names.table(backend, table)).await?,
        None => false,
    };
    let migrations = part.versions(names);
    let is_foreign = exists && !migrations.iter().any(|migration| noted.contains(migration));
    let rows = migrations.into_iter().map(|migration| MigrationRow {
        part,
        state: match noted.contains(&migration) {
            true => MigrationState::Made,
            false if is_foreign => MigrationState::Foreign,
            false => MigrationState::Missing,
        },
        migration,
    });
    Ok(rows.collect())
}

async fn exists(db: &DatabaseConnection, table: &str) -> Result<bool, DbErr> {
    match db
        .execute_unprepared(&format!("SELECT 1 FROM {table} WHERE 1 = 0"))
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &DbErr) -> bool {
    matches!(DatabaseAnswer::of(error), Some(DatabaseAnswer::TableMissing(_)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum MigrationState {
    /// Migration recorded as applied.
    Made,
    /// Migration neither recorded nor present.
    Missing,
    /// Migration present but not recorded.
    Foreign,
}

impl fmt::Display for MigrationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Serialize)]
struct MigrationRow {
    part: PartArgument,
    migration: String,
    state: MigrationState,
}

impl Columns for MigrationRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("tables", |row| row.part.to_string()),
        Column::new("migration", |row| row.migration.clone()),
        Column::new("state", |row| row.state.to_string()),
    ];
}

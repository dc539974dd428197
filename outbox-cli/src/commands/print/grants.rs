//! `outbox print grants`: SQL with the rights of a database login.
//!
//! Invariant: no password is printed or read. Command-line values are quoted or checked before
//! they become SQL.

use std::fmt::Write as _;

use crate::admin::rights::{Object, Role, When, grants};
use clap::{Args, ValueEnum};
use outbox::sea_orm::TableNames;
use sea_orm::DbBackend;

use crate::failure::CommandError;

/// Arguments of `outbox print grants`.
#[derive(Debug, Clone, Args)]
pub struct GrantsCommand {
    /// The database.
    #[arg(long, value_enum)]
    pub database: DatabaseArgument,
    /// Role of the login. May be repeated: a consumer that records is also a `writer`.
    #[arg(long, value_name = "ROLE", value_enum, required = true)]
    pub role: Vec<Role>,
    /// The login.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub user: String,
    /// Host of the login, on MariaDB and MySQL.
    #[arg(long, value_name = "HOST", default_value = "%", value_parser = parse_name)]
    pub host: String,
    /// The schema of the tables, on MariaDB and MySQL their database.
    #[arg(long, value_name = "NAME")]
    pub schema: Option<String>,
    /// The prefix of the table names.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub prefix: String,
    /// Only rights on the tables of the outbox, or only of the inbox.
    #[arg(long, value_enum)]
    pub tables: Option<TablesArgument>,
    /// The outbox has a log (`outbox relay log init`). The role `log-relay` implies this option.
    #[arg(long)]
    pub log: bool,
}

/// Database kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum DatabaseArgument {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, and MySQL.
    #[value(alias = "mysql")]
    Mariadb,
}

/// Table group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum TablesArgument {
    /// Tables of the outbox.
    Outbox,
    /// Tables of the inbox.
    Inbox,
}

/// Accepts text that is safe inside quotes in SQL and in the nats-server configuration.
fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |character: char| {
        character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '%' | ':' | '@')
    };
    if text.is_empty() || text.len() > 255 || !text.chars().all(is_plain) {
        return Err("use letters, digits, and `_`, `-`, `.`, `%`, `:` or `@`".to_owned());
    }
    Ok(text.to_owned())
}

impl GrantsCommand {
    pub(super) fn text(&self) -> Result<String, CommandError> {
        let mut names = TableNames::new()
            .with_prefix(&self.prefix)
            .map_err(CommandError::configuration)?;
        if let Some(schema) = &self.schema {
            names = names.with_schema(schema).map_err(CommandError::configuration)?;
        }
        let (backend, user) = match self.database {
            DatabaseArgument::Postgres => (DbBackend::Postgres, format!("\"{}\"", self.user)),
            DatabaseArgument::Mariadb => (DbBackend::MySql, format!("'{}'@'{}'", self.user, self.host)),
        };
        let roles = &self.role;
        let (reads_log, is_postgres) = (roles.contains(&Role::LogRelay), backend == DbBackend::Postgres);
        if (reads_log || self.log) && !is_postgres {
            return Err(CommandError::configuration(
                "only PostgreSQL's log can be read; use `--role relay`, and leave out `--log`",
            ));
        }
        let words: Vec<String> = roles.iter().map(ToString::to_string).collect();
        let mut text = format!(
            "-- The rights of {user} as {}, for its owner to run.\n",
            words.join(", ")
        );
        let _ = match backend {
            DbBackend::Postgres => writeln!(
                text,
                "-- First, if it is new: CREATE ROLE {user} LOGIN; and its password with \\password."
            ),
            _ => writeln!(
                text,
                "-- First, if it is new: CREATE USER {user} IDENTIFIED BY a password of your own."
            ),
        };
        if let (DbBackend::Postgres, Some(schema)) = (backend, names.schema()) {
            let _ = writeln!(text, "GRANT USAGE ON SCHEMA \"{schema}\" TO {user};");
        }
        if reads_log {
            text.push_str("-- Such a user can read every publication of the database. On RDS, in place of the next line: GRANT rds_replication TO it.\n");
            let _ = writeln!(text, "ALTER ROLE {user} REPLICATION;");
        }
        let found = grants(roles, |grant| {
            let is_asked = match self.tables {
                None => true,
                Some(tables) => (tables == TablesArgument::Inbox) == grant.object.is_of_inbox(),
            };
            let is_needed = match grant.when {
                When::Log => self.log || reads_log,
                _ => true,
            };
            is_asked && is_needed
        });
        for (object, privileges) in found {
            let kind = match (object, backend) {
                (Object::Routine(_), DbBackend::Postgres) => "FUNCTION ",
                (Object::Routine(_), _) => "PROCEDURE ",
                (Object::Sequence(_), DbBackend::Postgres) => "SEQUENCE ",
                (Object::Sequence(_), _) => continue,
                _ => "",
            };
            let name = names.table(backend, object.name());
            let _ = writeln!(text, "GRANT {} ON {kind}{name} TO {user};", privileges.join(", "));
        }
        Ok(text)
    }
}

//! Advice for database errors: create a missing table, grant a missing right.
//!
//! Invariant: the text starts with the server's error and ends with the command that fixes it,
//! if any.

use std::error::Error;
use std::fmt;

use crate::admin::rights::{Object, Role, grants};
use crate::admin::{Command, Next};
use outbox::core::{SetupKind, StoreError, describe};
use outbox::log::LogError;
use outbox::sea_orm::DatabaseAnswer;
use sea_orm::DbBackend;
use url::Url;

use crate::config::Outbox;

#[derive(Debug)]
pub(super) struct Advice {
    pub(super) answer: Option<DatabaseAnswer>,
    error: String,
    pub(super) next: Next,
}

impl Advice {
    pub(super) fn unknown(error: String) -> Self {
        Self {
            answer: None,
            error,
            next: Next::default(),
        }
    }

    fn meaning(&self) -> Option<&'static str> {
        let is_older = self.answer == Some(DatabaseAnswer::ColumnMissing);
        is_older.then_some("the tables are of an older version")
    }

    pub(super) fn sentence(&self) -> String {
        let parts = [
            Some(self.error.as_str()),
            self.meaning(),
            self.next.advice.as_deref(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(super) fn seen(&self) -> String {
        match self.meaning() {
            Some(meaning) => format!("{meaning}: {}", self.error),
            None => self.error.clone(),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        match &self.next.command {
            Some(command) => write!(f, "; next: {command}"),
            None => Ok(()),
        }
    }
}

pub(super) struct Login<'a> {
    pub(super) outbox: &'a Outbox,
    pub(super) backend: DbBackend,
    pub(super) role: Role,
}

pub(super) fn advise(error: &(dyn Error + 'static), login: &Login<'_>) -> Advice {
    let mut advice = advised(DatabaseAnswer::of(error), describe(error), login);
    if advice.answer.is_none() {
        advice.next.command = setup_kind(error).and_then(of_setup);
    }
    advice
}

fn setup_kind<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e SetupKind> {
    let of_log = error.downcast_ref().and_then(|error| match error {
        LogError::Setup(problem) => Some(&problem.kind),
        _ => None,
    });
    let of_store = || match error.downcast_ref()? {
        StoreError::Setup(problem) => Some(&problem.kind),
        _ => None,
    };
    of_log.or_else(of_store)
}

pub(super) fn of_setup(kind: &SetupKind) -> Option<Command> {
    match kind {
        SetupKind::Tables => Some("outbox migrate".into()),
        SetupKind::Leases => Some("outbox migrate --yes".into()),
        SetupKind::LogMissing => Some("outbox relay log init".into()),
        _ => None,
    }
}

fn advised(answer: Option<DatabaseAnswer>, error: String, login: &Login<'_>) -> Advice {
    let next = match &answer {
        Some(DatabaseAnswer::Denied(name)) => login.missing_right(name),
        Some(DatabaseAnswer::ColumnMissing) => Next::advice("create them again (CHANGELOG.md)"),
        Some(DatabaseAnswer::TableMissing(name)) => of_missing_table(login.bare(name)),
        _ => Next::default(),
    };
    Advice { answer, error, next }
}

fn of_missing_table(name: &str) -> Next {
    match name {
        "inbox_operations" => Next::and_advice(
            "outbox migrate --tables inbox --yes",
            "create the table: changes need it",
        ),
        _ if name.starts_with("inbox_") => Next::advice(
            "inbox tables are in the databases of their services: add an `[[outbox]]` with that database, `schema` and `prefix` to the file",
        ),
        _ => Next::and_advice(
            "outbox migrate",
            "correct `schema` and `prefix`, or list the tables and create them",
        ),
    }
}

impl Login<'_> {
    fn bare<'n>(&self, name: &'n str) -> &'n str {
        let prefix = self.outbox.section.prefix.as_str();
        name.strip_prefix(prefix).unwrap_or(name)
    }

    fn missing_right(&self, name: &str) -> Next {
        let bare = self.bare(name);
        let granted = |role| {
            let found = grants(&[role], |grant| grant.object.name() == bare);
            found
                .into_iter()
                .next()
                .map(|(object, words)| (role, object, words))
        };
        let found = [
            self.role,
            Role::Operator,
            Role::LogRelay,
            Role::Consumer,
            Role::Writer,
        ]
        .into_iter()
        .find_map(granted);
        let (role, needed) = match found {
            Some((role, object, words)) => (role, format!("{} on {}", words.join(", "), kind(object, name))),
            None => (self.role, format!("the rights on {name}")),
        };
        Next::and_advice(self.command(role), format!("the role {role} has {needed}"))
    }

    fn command(&self, role: Role) -> Command {
        let section = &self.outbox.section;
        let database = match self.backend {
            DbBackend::MySql => "mariadb",
            _ => "postgres",
        };
        let address = Url::parse(self.outbox.database_url.expose()).ok();
        let user = address.as_ref().map(Url::username).unwrap_or_default();
        let user = if user.is_empty() { "NAME" } else { user };
        let mut command = Command::from("outbox print grants")
            .option("--database", database)
            .option("--role", role)
            .option("--user", user);
        let options = [
            ("--schema", section.schema.as_deref().unwrap_or_default()),
            ("--prefix", &section.prefix),
        ];
        for (option, value) in options.into_iter().filter(|(_, value)| !value.is_empty()) {
            command = command.option(option, value);
        }
        command
    }
}

fn kind(object: Object, name: &str) -> String {
    match object {
        Object::Routine(_) => format!("the routine {name}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn outbox() -> Outbox {
        let mut outbox = Outbox {
            section: crate::config::OutboxSection::default(),
            database_url: Secret::new("postgres://relay:hunter2@db/shop"),
            log_url: Secret::default(),
            nats_url: Secret::default(),
            nats_credentials: None,
            source: None,
        };
        outbox.section.schema = Some("shop".to_owned());
        outbox.section.prefix = "a_".to_owned();
        outbox
    }

    fn advised(answer: DatabaseAnswer, backend: DbBackend, role: Role) -> String {
        let outbox = outbox();
        let login = Login {
            outbox: &outbox,
            backend,
            role,
        };
        super::advised(Some(answer), "refused".to_owned(), &login).to_string()
    }

    #[test]
    fn missing_table_error_has_the_migrate_command() {
        let said = |table: &str| {
            let answer = DatabaseAnswer::TableMissing(table.to_owned());
            advised(answer, DbBackend::Postgres, Role::Viewer)
        };
        let messages = said("a_outbox_messages");
        assert!(messages.ends_with("; next: outbox migrate"), "{messages}");
        let operations = said("a_inbox_operations");
        assert!(operations.ends_with("--tables inbox --yes"), "{operations}");
        assert!(!said("a_inbox_messages").contains("next: "));
    }

    #[test]
    fn missing_column_means_older_tables() {
        let said = advised(DatabaseAnswer::ColumnMissing, DbBackend::MySql, Role::Viewer);
        let expected = "the tables are of an older version; create them again (CHANGELOG.md)";
        assert_eq!(said, format!("refused; {expected}"));
    }

    #[test]
    fn missing_right_error_has_the_grants_command() {
        let of_viewer = "--role viewer --user relay --schema shop --prefix a_";
        for (object, backend, needed, command) in [
            (
                "a_inbox_messages",
                DbBackend::Postgres,
                "the role viewer has SELECT on a_inbox_messages",
                format!("--database postgres {of_viewer}"),
            ),
            (
                "a_inbox_messages",
                DbBackend::MySql,
                "the role viewer has SELECT on a_inbox_messages",
                format!("--database mariadb {of_viewer}"),
            ),
            (
                "shop",
                DbBackend::Postgres,
                "the role viewer has the rights on shop",
                format!("--database postgres {of_viewer}"),
            ),
        ] {
            let said = advised(DatabaseAnswer::Denied(object.to_owned()), backend, Role::Viewer);
            let expected = format!("refused; {needed}; next: outbox print grants {command}");
            assert_eq!(said, expected);
        }
        let denied = DatabaseAnswer::Denied("a_outbox_messages".to_owned());
        let said = advised(denied, DbBackend::Postgres, Role::Operator);
        assert!(said.contains("the role operator has SELECT"), "{said}");
    }
}

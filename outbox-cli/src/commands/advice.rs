//! What a person does about an error of the database: a missing table is made, a missing right is granted.
//!
//! Invariant: the text begins with the error, as the server has put it, and ends with the command that mends it, if there is one.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use outbox_admin::rights::{Object, Role, grants};
use outbox_admin::{Next, quoted};
use percent_encoding::percent_decode_str;
use sea_orm::DbBackend;
use url::Url;

use crate::config::Outbox;

/// What is the matter, as far as somebody tells errors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The tables are those of an older version.
    OlderTables,
    /// Another process holds the file of SQLite locked.
    Locked,
    /// SQLite cannot open the file, or it is no database.
    NotOpened,
    /// Anything else.
    Other,
}

impl Trouble {
    /// Whether it is about the file of SQLite as a whole, so that each further question would meet it again.
    pub(super) fn is_of_file(self) -> bool {
        matches!(self, Self::Locked | Self::NotOpened)
    }
}

/// An error of the database, and what mends it if that is known.
#[derive(Debug)]
pub(super) struct Advice {
    pub(super) trouble: Trouble,
    /// The error, as the server has put it.
    pub(super) error: String,
    /// What it means, if the error does not say it.
    meaning: Option<&'static str>,
    /// What mends it.
    pub(super) next: Next,
}

impl Advice {
    fn new(trouble: Trouble, error: &str, meaning: Option<&'static str>, next: Next) -> Self {
        Self {
            trouble,
            error: error.to_owned(),
            meaning,
            next,
        }
    }

    /// An error of which no more is known than its text.
    pub(super) fn unknown(error: &str) -> Self {
        Self::new(Trouble::Other, error, None, Next::default())
    }

    fn other(error: &str, next: Next) -> Self {
        Self::new(Trouble::Other, error, None, next)
    }

    /// The error and what it means.
    pub(super) fn seen(&self) -> String {
        match self.meaning {
            Some(meaning) => format!("{meaning}: {}", self.error),
            None => self.error.clone(),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        if let Some(meaning) = self.meaning {
            write!(f, "; {meaning}")?;
        }
        if let Some(advice) = &self.next.advice {
            write!(f, "; {advice}")?;
        }
        match &self.next.command {
            Some(command) => write!(f, "; next: {command}"),
            None => Ok(()),
        }
    }
}

/// The login of a command, and what it needs its rights for.
pub(super) struct Login<'a> {
    pub(super) outbox: &'a Outbox,
    pub(super) backend: DbBackend,
    pub(super) role: Role,
}

/// The error, and what mends it if that is known.
pub(super) fn advise(error: &str, login: &Login<'_>) -> Advice {
    if error.contains("run `outbox migrate`") || error.contains("GRANT ") {
        return Advice::unknown(error);
    }
    if is_locked(error) {
        let meaning = "another process holds the file locked";
        return Advice::new(Trouble::Locked, error, Some(meaning), login.locked());
    }
    if login.backend == DbBackend::Sqlite
        && let Some(was_read) = not_opened(error)
    {
        let meaning = match was_read {
            true => "the file is no database of SQLite",
            false => "the file of the database cannot be opened",
        };
        let next = login.not_opened(was_read);
        return Advice::new(Trouble::NotOpened, error, Some(meaning), next);
    }
    if let Some(name) = refused_object(error) {
        return Advice::other(error, login.missing_right(name));
    }
    if lacks_column(error) {
        let meaning = "the tables are those of an older version";
        let next = Next::advice("create them again (CHANGELOG.md)");
        return Advice::new(Trouble::OlderTables, error, Some(meaning), next);
    }
    match of_missing_table(error) {
        Some(next) => Advice::other(error, next),
        None => Advice::unknown(error),
    }
}

/// What makes a table that is missing. The three databases say in these words that it is.
fn of_missing_table(error: &str) -> Option<Next> {
    let is_missing = ["does not exist", "doesn't exist", "no such table"]
        .iter()
        .any(|words| error.contains(words));
    if !is_missing {
        return None;
    }
    Some(if error.contains("inbox_operations") {
        Next::and_advice(
            "outbox migrate --tables inbox --yes",
            "make the table, without which no change is made",
        )
    } else if error.contains("inbox_") {
        Next::advice(
            "the tables of inboxes are in the databases of their services: give the file an outbox with that database, `schema` and `prefix`",
        )
    } else {
        Next::and_advice(
            "outbox migrate",
            "correct `schema` and `prefix`, or look which tables are there and make them",
        )
    })
}

/// Whether another process keeps SQLite from a lock. Its other codes are about sessions of the same process, and snapshots that were overtaken.
fn is_locked(error: &str) -> bool {
    error.contains("(code: 5) database is locked")
}

/// Whether SQLite could not open the file (14; its cause is in the higher bytes), or has read it and found no database (26): then it is `Some(true)`.
fn not_opened(error: &str) -> Option<bool> {
    let (_, rest) = error.split_once("(code: ")?;
    let (code, _) = rest.split_once(')')?;
    match code.parse::<u32>().ok()? & 0xff {
        14 => Some(false),
        26 => Some(true),
        _ => None,
    }
}

/// Whether a column is missing, as PostgreSQL, MariaDB, MySQL and SQLite say it.
fn lacks_column(error: &str) -> bool {
    let of_postgres = error.split_once("column ");
    let of_others = ["Unknown column", "no such column", "has no column named"];
    of_postgres.is_some_and(|(_, rest)| rest.contains("does not exist"))
        || of_others.iter().any(|words| error.contains(words))
}

/// What the login may not use, without its schema: PostgreSQL, MariaDB and MySQL say so in these words.
fn refused_object(error: &str) -> Option<&str> {
    const KINDS: [&str; 6] = ["table ", "view ", "sequence ", "function ", "routine ", "schema "];
    let of_postgres = error.split_once("permission denied for ");
    let of_mysql = error
        .split_once(" command denied to user ")
        .and_then(|(_, rest)| rest.split_once(" for "));
    let (_, what) = of_postgres.or(of_mysql)?;
    let name = KINDS.iter().find_map(|kind| what.strip_prefix(kind))?;
    let is_end = |character: char| character.is_whitespace() || character == ';' || character == ',';
    let name = name.split(is_end).next()?.trim_end_matches(':');
    let name = name.rsplit('.').next()?;
    Some(name.trim_matches(['"', '\'', '`']))
}

impl Login<'_> {
    /// The file of SQLite.
    fn file(&self) -> String {
        let address = self.outbox.database_url.expose();
        let file = address.strip_prefix("sqlite:").unwrap_or(address);
        let file = file.strip_prefix("//").unwrap_or(file);
        let file = file.split('?').next().unwrap_or_default();
        percent_decode_str(file).decode_utf8_lossy().into_owned()
    }

    /// What a person does about a file that is locked.
    fn locked(&self) -> Next {
        Next::and_advice(
            format!("fuser {}", quoted(&self.file())),
            "end the process whose transaction stays open, or wait for it with a longer `--timeout`",
        )
    }

    /// What a person does about a file that cannot be opened, or is no database: that depends on what is there.
    fn not_opened(&self, was_read: bool) -> Next {
        const MIGRATE: &str = "outbox migrate --yes";
        let file = self.file();
        let name = quoted(&file);
        let folder = Path::new(&file)
            .parent()
            .filter(|folder| *folder != Path::new(""));
        let is_made = self.outbox.database_url.expose().contains("mode=rwc");
        match std::fs::metadata(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => match folder {
                Some(folder) if !folder.exists() => Next::advice(format!(
                    "correct DATABASE_URL, or make the folder {}",
                    quoted(&folder.to_string_lossy())
                )),
                _ if is_made => {
                    Next::and_advice(MIGRATE, "correct DATABASE_URL, or make the file with its tables")
                }
                _ => Next::and_advice(
                    MIGRATE,
                    "correct DATABASE_URL, or append `?mode=rwc` to it and make the file with its tables",
                ),
            },
            Err(error) => Next::advice(format!(
                "correct DATABASE_URL, or give the user of this program the rights to the folders above {name}: {error}"
            )),
            Ok(found) if found.is_dir() => Next::advice(format!("correct DATABASE_URL: {name} is a folder")),
            Ok(_) if was_read => Next::advice(format!("correct DATABASE_URL: {name} holds something else")),
            Ok(_) => Next::and_advice(
                format!("ls -l {name}"),
                "the file is there: give the user of this program the rights to read and write it and its folder",
            ),
        }
    }

    /// The right that is missing, and the command that prints its statement.
    fn missing_right(&self, name: &str) -> Next {
        let section = &self.outbox.section;
        let bare = name.strip_prefix(section.prefix.as_str()).unwrap_or(name);
        let granted = |role| {
            let found = grants(&[role], |grant| grant.object.name() == bare);
            found
                .into_iter()
                .next()
                .map(|(object, words)| (role, object, words))
        };
        // What the command is for comes first; a table that only others use is theirs.
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
        Next::and_advice(
            self.command(role),
            format!("the role {} has {needed}", role.as_str()),
        )
    }

    fn command(&self, role: Role) -> String {
        let section = &self.outbox.section;
        let database = match self.backend {
            DbBackend::MySql => "mariadb",
            _ => "postgres",
        };
        let address = Url::parse(self.outbox.database_url.expose()).ok();
        let user = address.as_ref().map(Url::username).unwrap_or_default();
        let user = if user.is_empty() { "NAME" } else { user };
        let mut command = format!(
            "outbox print grants --database {database} --role {} --user {}",
            role.as_str(),
            quoted(user)
        );
        let options = [
            ("schema", section.schema.as_deref().unwrap_or_default()),
            ("prefix", &section.prefix),
        ];
        for (option, value) in options.into_iter().filter(|(_, value)| !value.is_empty()) {
            command.push_str(&format!(" --{option} {}", quoted(value)));
        }
        command
    }
}

fn kind(object: Object, name: &str) -> String {
    match object {
        Object::Routine(_) => format!("the routine {name}"),
        Object::Sequence(_) => format!("the sequence {name}"),
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

    fn advised(error: &str, backend: DbBackend, role: Role) -> String {
        let outbox = outbox();
        let login = Login {
            outbox: &outbox,
            backend,
            role,
        };
        advise(error, &login).to_string()
    }

    #[test]
    fn a_missing_table_names_the_command_that_makes_it() {
        let said = advised(
            "relation \"outbox_messages\" does not exist",
            DbBackend::Postgres,
            Role::Viewer,
        );
        assert!(
            said.starts_with("relation \"outbox_messages\" does not exist; ")
                && said.ends_with("; next: outbox migrate"),
            "{said}"
        );
        let other = advised("no answer at line 3", DbBackend::Postgres, Role::Viewer);
        assert_eq!(other, "no answer at line 3");
    }

    #[test]
    fn a_missing_column_is_told_as_tables_of_an_older_version() {
        for (error, backend) in [
            ("column \"name\" does not exist", DbBackend::Postgres),
            (
                "1054 (42S22): Unknown column 'name' in 'SELECT'",
                DbBackend::MySql,
            ),
            ("(code: 1) no such column: name", DbBackend::Sqlite),
        ] {
            let said = advised(error, backend, Role::Viewer);
            let expected = "the tables are those of an older version; create them again (CHANGELOG.md)";
            assert_eq!(said, format!("{error}; {expected}"));
        }
    }

    #[test]
    fn a_file_that_another_process_holds_locked_is_named() {
        let mut outbox = outbox();
        outbox.database_url = Secret::new("sqlite:///var/lib/the%20shop.db?mode=rw");
        let login = Login {
            outbox: &outbox,
            backend: DbBackend::Sqlite,
            role: Role::Viewer,
        };
        let error = "error returned from database: (code: 5) database is locked";
        let advice = advise(error, &login);
        assert_eq!(advice.trouble, Trouble::Locked);
        let said = advice.to_string();
        assert!(
            said.starts_with(error) && said.contains("; another process holds the file locked"),
            "{said}"
        );
        assert!(said.ends_with("; next: fuser '/var/lib/the shop.db'"), "{said}");
        // Its snapshot was overtaken, at once.
        let overtaken = advise("(code: 517) database is locked", &login);
        assert_eq!(overtaken.trouble, Trouble::Other);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_told_by_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (there, missing) = (folder.path().join("there.db"), folder.path().join("missing.db"));
        std::fs::write(&there, "something else").unwrap();
        let told = |path: &std::path::Path, code: u32| {
            let mut outbox = outbox();
            outbox.database_url = Secret::new(format!("sqlite://{}?mode=rwc", path.display()));
            let login = Login {
                outbox: &outbox,
                backend: DbBackend::Sqlite,
                role: Role::Viewer,
            };
            let error = format!("error returned from database: (code: {code}) unable to open database file");
            let advice = advise(&error, &login);
            assert_eq!(advice.trouble, Trouble::NotOpened);
            advice.to_string()
        };
        for (path, code, expected) in [
            (missing.as_path(), 14, "cannot be opened; correct DATABASE_URL"),
            (missing.as_path(), 14, "outbox migrate --yes"),
            (folder.path(), 526, "is a folder"),
            (there.as_path(), 14, "the rights to read and write it"),
            (there.as_path(), 26, "no database of SQLite; correct"),
        ] {
            let said = told(path, code);
            assert!(said.contains(expected), "{expected}: {said}");
        }
        let there = told(&there, 14);
        assert!(
            !there.contains("DATABASE_URL") && !there.contains("outbox migrate"),
            "{there}"
        );
    }

    #[test]
    fn a_missing_right_is_named_with_the_command_that_prints_its_statement() {
        let of_viewer = "--role viewer --user relay --schema shop --prefix a_";
        for (error, backend, needed, command) in [
            (
                "permission denied for table a_inbox_messages",
                DbBackend::Postgres,
                "the role viewer has SELECT on a_inbox_messages",
                format!("--database postgres {of_viewer}"),
            ),
            (
                "1142 (42000): SELECT command denied to user 'relay'@'%' for table `shop`.`a_inbox_messages`",
                DbBackend::MySql,
                "the role viewer has SELECT on a_inbox_messages",
                format!("--database mariadb {of_viewer}"),
            ),
            (
                "permission denied for schema shop: detail",
                DbBackend::Postgres,
                "the role viewer has the rights on shop",
                format!("--database postgres {of_viewer}"),
            ),
        ] {
            let said = advised(error, backend, Role::Viewer);
            let expected = format!("{error}; {needed}; next: outbox print grants {command}");
            assert_eq!(said, expected);
        }
        let said = advised(
            "permission denied for table a_outbox_messages",
            DbBackend::Postgres,
            Role::Operator,
        );
        assert!(said.contains("the role operator has SELECT"), "{said}");
    }
}

//! A login for each program of a run, with the rights that `outbox print grants` prints for what the program does, and no others.
//!
//! Invariant: a program whose login lacks a right fails, because nothing else gives it one: tables and logins belong to the login of the run. The shop's own tables are
//! the exception: what a program does with them is the shop's business, so the run grants it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use sea_orm::{ConnectionTrait as _, DatabaseConnection};
use uuid::Uuid;

use crate::database::{connect, with_login};
use crate::failure::{Doing, Failure};
use crate::setup::{DatabaseKind, Part, Role, Setup};
use crate::tables;

/// The logins of a run, by the programs that have them.
#[derive(Debug)]
pub(crate) struct Logins<'a> {
    /// The program `outbox`.
    printer: &'a Path,
    /// The end of the run's id.
    run: String,
    password: String,
}

impl<'a> Logins<'a> {
    /// The logins of a run, none of which is made yet. SQLite has no logins.
    pub(crate) fn new(printer: &'a Path, database: DatabaseKind, run: &str) -> Result<Self, Failure> {
        if database == DatabaseKind::Sqlite {
            let why = "--grants-by needs --database postgres or mariadb: SQLite has no logins";
            return Err(Failure::Wrong(why.to_owned()));
        }
        Ok(Self {
            printer,
            run: run.to_owned(),
            password: Uuid::new_v4().simple().to_string(),
        })
    }

    fn name(&self, role: Role) -> String {
        format!("northwind_{}_{}", self.run, role.name().replace('-', "_"))
    }

    /// Makes the logins of the programs that work on a part's database, whose tables are there; returns their addresses.
    pub(crate) async fn make(
        &self,
        setup: &Setup,
        part: Part,
        db: &DatabaseConnection,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut urls = BTreeMap::new();
        for role in Role::all().filter(|role| role.part() == part) {
            let name = self.name(role);
            let what = format!("make the login {name}");
            let mut statements = vec![create(setup.database, &name, &self.password)];
            statements.extend(self.printed(setup, role, &name)?);
            if role != Role::Relay(part) {
                let whom = quoted(setup.database, &name);
                let names = tables::names(part).iter();
                statements
                    .extend(names.map(|table| format!("GRANT SELECT, INSERT, UPDATE ON {table} TO {whom}")));
            }
            for statement in statements {
                db.execute_unprepared(&statement).await.or_cannot(&what)?;
            }
            urls.insert(role.name(), with_login(setup.url(part), &name, &self.password));
        }
        Ok(urls)
    }

    /// The statements that `outbox print grants` prints for a program.
    fn printed(&self, setup: &Setup, role: Role, user: &str) -> Result<Vec<String>, Failure> {
        let database = match setup.database {
            DatabaseKind::Mariadb => "mariadb",
            _ => "postgres",
        };
        let mut words = vec!["grants", "--database", database, "--user", user];
        words.extend(duties(setup, role));
        let text = print(self.printer, &words)?;
        let statements = text.lines().filter(|line| !line.starts_with("--"));
        Ok(statements.map(str::to_owned).collect())
    }

    /// Drops the logins, after the databases.
    pub(crate) async fn drop(&self, kind: DatabaseKind, admin_url: &str) -> Result<(), Failure> {
        let db = connect(kind, admin_url, 1).await?;
        for role in Role::all() {
            let whom = quoted(kind, &self.name(role));
            let statement = match kind {
                DatabaseKind::Mariadb => format!("DROP USER IF EXISTS {whom}"),
                _ => format!("DROP ROLE IF EXISTS {whom}"),
            };
            db.execute_unprepared(&statement)
                .await
                .or_cannot(format_args!("run `{statement}`"))?;
        }
        db.close().await.or_cannot("close the connection")
    }
}

/// What the program `outbox` prints: `outbox print <words>`.
pub(crate) fn print(printer: &Path, words: &[&str]) -> Result<String, Failure> {
    let what = format!("run `{} print {}`", printer.display(), words[0]);
    let output = Command::new(printer)
        .arg("print")
        .args(words)
        .output()
        .or_cannot(&what)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Wrong(format!("cannot {what}: {error}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What a program does, in the words of `outbox print grants`.
fn duties(setup: &Setup, role: Role) -> Vec<&'static str> {
    let part = role.part();
    let mut words = match role {
        Role::Service => vec!["--role", "writer"],
        Role::Relay(part) if setup.has_log(part) => vec!["--role", "log-relay"],
        Role::Relay(_) => vec!["--role", "relay"],
        // The handlers of some record messages of their own.
        Role::Consumer(part) if Part::OUTBOXES.contains(&part) => {
            vec!["--role", "consumer", "--role", "writer"]
        }
        Role::Consumer(_) => vec!["--role", "consumer"],
    };
    match (Part::OUTBOXES.contains(&part), Part::CONSUMERS.contains(&part)) {
        (true, false) => words.extend(["--tables", "outbox"]),
        (false, true) => words.extend(["--tables", "inbox"]),
        _ => {}
    }
    words
}

fn create(kind: DatabaseKind, name: &str, password: &str) -> String {
    let whom = quoted(kind, name);
    match kind {
        DatabaseKind::Mariadb => format!("CREATE USER {whom} IDENTIFIED BY '{password}'"),
        _ => format!("CREATE ROLE {whom} LOGIN PASSWORD '{password}'"),
    }
}

// The names consist of letters, digits and underscores.
fn quoted(kind: DatabaseKind, name: &str) -> String {
    match kind {
        DatabaseKind::Mariadb => format!("'{name}'@'%'"),
        _ => format!("\"{name}\""),
    }
}

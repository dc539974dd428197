//! Missing rights of a role are found at the start, with the `GRANT` to run.

use outbox_inbox::{Event, HandlerError, Inbox, InboxError, Router, Tx, idempotent_handler};
use outbox_sea_orm::ConnectError;
use outbox_testing::MemoryBroker;
use sea_orm::{ConnectOptions, DatabaseConnection};

use crate::support::{Backend, OrderPlaced, TestDb, placed, publish, quick};

#[idempotent_handler(consumer = "rights", strategy = sequence)]
async fn count(_event: Event<OrderPlaced>, _tx: Tx<'_>) -> Result<(), HandlerError> {
    Ok(())
}

const PAGE: &str = include_str!("../../../docs/reference/rights.md");

/// Login with the documented rights. Tests share logins, so that a server keeps few.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) name: &'static str,
    pub(crate) roles: &'static [&'static str],
    pub(crate) own: &'static [&'static str],
}

impl Login {
    pub(crate) async fn make(&self, test: &TestDb) {
        let name = self.name;
        let make = match test.backend {
            Backend::Postgres => format!(
                "DO $$ BEGIN CREATE ROLE {name}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            ),
            _ => format!("CREATE USER IF NOT EXISTS '{name}'@'%' IDENTIFIED BY 'secret'"),
        };
        test.execute(&make).await;
        if test.backend == Backend::Postgres {
            let schema = test.name();
            test.execute(&format!("GRANT USAGE ON SCHEMA {schema} TO {name}"))
                .await;
        }
        self.grant(test, self.own).await;
        for role in self.roles {
            let rights = documented(role).into_iter();
            let rights =
                rights.filter(|right| test.backend == Backend::Postgres || !right.starts_with("USAGE"));
            self.grant(test, &rights.collect::<Vec<_>>()).await;
        }
    }

    pub(crate) async fn grant(&self, test: &TestDb, rights: &[impl AsRef<str>]) {
        let whom = match test.backend {
            Backend::Postgres => self.name.to_owned(),
            _ => format!("'{}'@'%'", self.name),
        };
        for rights in rights {
            test.execute(&format!("GRANT {} TO {whom}", rights.as_ref()))
                .await;
        }
    }
}

pub(crate) fn documented(role: &str) -> Vec<String> {
    let (_, table) = PAGE.split_once("| role | on | rights | for |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rights: Vec<String> = rows
        .map(|row| Vec::from_iter(row.split('|').map(|cell| cell.trim().trim_matches('`'))))
        .filter(|cells| cells[1] == role)
        .map(|cells| format!("{} ON {}", cells[3], cells[2]))
        .collect();
    assert!(!rights.is_empty(), "{role}");
    rights
}

pub(crate) fn log_in(options: &mut ConnectOptions, backend: Backend, login: &str, database: &str) {
    let (login, database) = (login.to_owned(), database.to_owned());
    if backend == Backend::Postgres {
        options.map_sqlx_postgres_opts(move |options| options.options([("role", &login)]));
    } else {
        options.map_sqlx_mysql_opts(move |options| {
            options.username(&login).password("secret").database(&database)
        });
    }
}

async fn connect_as_stranger(test: &TestDb) -> (DatabaseConnection, String) {
    let name = format!("r{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
    let grantee = if test.backend == Backend::Postgres {
        let schema = "(SELECT current_schema())";
        test.execute(&format!("CREATE ROLE {name}")).await;
        test.execute(&format!(
            "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO {name}', {schema}); END $$"
        ))
        .await;
        name.clone()
    } else {
        test.execute(&format!("CREATE USER '{name}'@'%' IDENTIFIED BY 'secret'"))
            .await;
        let grantee = format!("'{name}'@'%'");
        test.execute(&format!("GRANT SELECT ON markers TO {grantee}"))
            .await;
        grantee
    };
    let db = test.connect_with(|options| log_in(options, test.backend, &name, test.name()));
    (db.await, grantee)
}

async fn forget(test: &TestDb, role: &str) {
    if test.backend == Backend::Postgres {
        test.execute(&format!("DROP OWNED BY {role}")).await;
        test.execute(&format!("DROP ROLE {role}")).await;
    } else {
        test.execute(&format!("DROP USER {role}")).await;
    }
}

async fn missing_rights_are_named_with_their_grants(backend: Backend) {
    let Some(test) = TestDb::open(backend, "rights").await else {
        return;
    };
    let (db, role) = connect_as_stranger(&test).await;
    for table in ["inbox_messages", "inbox_dead_letters"] {
        test.execute(&format!("GRANT SELECT, INSERT ON {table} TO {role}"))
            .await;
    }
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let inbox = Inbox::new(db, broker.subscriber())
        .with_router(Router::new().handler::<count>())
        .with_config(quick());
    let error = inbox.drain().await.unwrap_err();
    let InboxError::Start(error) = error else {
        panic!("{error}: {error:?}")
    };
    let mut found = Vec::new();
    for problem in error.problems() {
        let text = problem.to_string();
        let (_, grant) = text.split_once("run `").unwrap();
        let grant = grant.strip_suffix('`').unwrap();
        test.execute(grant).await;
        found.push(grant.to_owned());
    }
    assert_eq!(
        found,
        [
            "UPDATE, DELETE ON inbox_messages",
            "UPDATE, DELETE ON inbox_dead_letters",
            "SELECT ON inbox_pauses",
            "SELECT, INSERT, UPDATE ON inbox_sequences",
        ]
        .map(|rights| format!("GRANT {rights} TO {role}"))
    );
    assert_eq!(broker.deliveries("rights"), 0, "nothing was received before");
    assert_eq!(inbox.drain().await.unwrap().handled, 1);
    forget(&test, &role).await;
}

#[tokio::test]
async fn missing_rights_on_postgres() {
    missing_rights_are_named_with_their_grants(Backend::Postgres).await;
}

#[tokio::test]
async fn missing_rights_on_mariadb() {
    missing_rights_are_named_with_their_grants(Backend::MariaDb).await;
}

async fn is_refused(test: &TestDb, user: &str) {
    let db = test
        .connect_with(|options| {
            let (of_postgres, of_mysql) = (user.to_owned(), user.to_owned());
            options.connect_lazy(true);
            options.map_sqlx_postgres_opts(move |options| options.username(&of_postgres).password("hunter2"));
            options.map_sqlx_mysql_opts(move |options| options.username(&of_mysql).password("hunter2"));
        })
        .await;
    let inbox = Inbox::new(db, MemoryBroker::new().subscriber())
        .with_router(Router::new().handler::<count>())
        .with_config(quick());
    let error = inbox.drain().await.unwrap_err();
    assert!(
        matches!(&error, InboxError::Connect(ConnectError::Refused { .. })),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("user `{user}`"))
            && text.contains("refuses the login")
            && !text.contains("migration"),
        "{text}"
    );
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn a_refused_login_ends_the_inbox_at_its_start() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        if let Some(test) = TestDb::open(backend, "refused_login").await {
            is_refused(&test, "stranger").await;
        }
    }
}

/// A row hidden by row-level security would make a repeated message look new.
#[tokio::test]
async fn row_level_security_is_refused_at_the_inbox_start() {
    let Some(test) = TestDb::open(Backend::Postgres, "row_security").await else {
        return;
    };
    let (db, role) = connect_as_stranger(&test).await;
    for (table, rights) in [
        ("inbox_messages", "SELECT, INSERT, UPDATE, DELETE"),
        ("inbox_dead_letters", "SELECT, INSERT, UPDATE, DELETE"),
        ("inbox_pauses", "SELECT"),
        ("inbox_sequences", "SELECT, INSERT, UPDATE"),
    ] {
        test.execute(&format!("GRANT {rights} ON {table} TO {role}"))
            .await;
    }
    test.execute("ALTER TABLE inbox_messages ENABLE ROW LEVEL SECURITY")
        .await;
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let inbox = Inbox::new(db, broker.subscriber())
        .with_router(Router::new().handler::<count>())
        .with_config(quick());
    let error = inbox.drain().await.unwrap_err();
    let InboxError::Start(error) = error else {
        panic!("{error}: {error:?}")
    };
    assert!(
        error
            .to_string()
            .starts_with("row-level security hides rows of inbox_messages"),
        "{error}"
    );
    test.execute("ALTER TABLE inbox_messages DISABLE ROW LEVEL SECURITY")
        .await;
    assert_eq!(inbox.drain().await.unwrap().handled, 1);
    forget(&test, &role).await;
}

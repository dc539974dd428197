//! The printed database rights of each role suffice for its work and for nothing else.
//!
//! Method: logins with only the statements of `outbox print grants`, tested per right and with
//! the real components.

use std::collections::BTreeSet;

use clap::ValueEnum as _;
use outbox::core::RelayHealth;
use outbox::sea_orm::migration::writers;
use outbox::sea_orm::{OutboxConfig, OutboxConnection};
use outbox::testing::eventually;
use outbox_cli::admin::rights::{GRANTS, Object, Role, When, grants};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, TransactionTrait as _};
use uuid::Uuid;

use super::answer::{Answer, Words as _, logged_in, run};
use super::plant::{OrderPlaced, Planted, dead, failed};
use crate::place::{Kind, Place, Program, on_both_servers};

const TABLES: [(&str, &str); 13] = [
    ("outbox_messages", "status"),
    ("outbox_aggregates", "last_sequence"),
    ("outbox_dedup_keys", "recorded_at"),
    ("outbox_blocks", "blocked_until"),
    ("outbox_leases", "epoch"),
    ("outbox_relays", "expires_at"),
    ("outbox_pauses", "reason"),
    ("inbox_messages", "consumer"),
    ("inbox_sequences", "consumer"),
    ("inbox_dead_letters", "consumer"),
    ("inbox_pauses", "reason"),
    ("outbox_operations", "changed"),
    ("inbox_operations", "changed"),
];

pub(crate) struct Login {
    user: String,
    pub(crate) url: String,
    db: DatabaseConnection,
}

fn database(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres | Kind::Logical => "postgres",
        _ => "mariadb",
    }
}

fn printed(kind: Kind, place: &Place, roles: &[Role], user: &str, more: &[&str]) -> String {
    let (database, schema) = (database(kind), &place.name);
    let mut words = format!("print grants --database {database} --user {user} --schema {schema}");
    for role in roles {
        words = format!("{words} --role {role}");
    }
    for word in more {
        words = format!("{words} {word}");
    }
    run(&words, &[]).expect(0).out
}

impl Login {
    pub(crate) async fn new(kind: Kind, place: &Place, roles: &[Role]) -> Self {
        Self::with(kind, place, roles, &[]).await
    }

    pub(crate) async fn with(kind: Kind, place: &Place, roles: &[Role], more: &[&str]) -> Self {
        let user = format!("r{}", &Uuid::now_v7().simple().to_string()[14..]);
        let create = match kind {
            Kind::Postgres | Kind::Logical => format!("CREATE ROLE {user} LOGIN PASSWORD 'secret'"),
            _ => format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'"),
        };
        place.db.execute_unprepared(&create).await.unwrap();
        for statement in printed(kind, place, roles, &user, more)
            .lines()
            .filter(|line| !line.starts_with("--"))
        {
            place
                .db
                .execute_unprepared(statement)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let (scheme, rest) = place.url.split_once("://").unwrap();
        let (_, server) = rest.rsplit_once('@').unwrap();
        let url = format!("{scheme}://{user}:secret@{server}");
        let mut options = ConnectOptions::new(&url);
        options.max_connections(2).sqlx_logging(false);
        let db = Database::connect(options).await.unwrap();
        Self { user, url, db }
    }

    pub(crate) async fn close(self, kind: Kind, place: &Place) {
        self.db.close().await.unwrap();
        let drop = match kind {
            Kind::Postgres | Kind::Logical => format!("DROP OWNED BY {0}; DROP ROLE {0}", self.user),
            _ => format!("DROP USER '{}'@'%'", self.user),
        };
        place.db.execute_unprepared(&drop).await.unwrap();
    }

    /// Disables the database login. Needed because the PostgreSQL test servers accept any password.
    pub(crate) async fn lock_out(&self, kind: Kind, place: &Place) {
        let user = &self.user;
        let statements = match kind {
            Kind::Postgres | Kind::Logical => [
                format!("ALTER ROLE {user} NOLOGIN"),
                format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"),
            ],
            _ => [
                format!("ALTER USER '{user}'@'%' IDENTIFIED BY 'changed'"),
                format!("KILL USER '{user}'"),
            ],
        };
        for statement in statements {
            place.execute(&statement).await;
        }
    }

    async fn may(&self, sql: &str) -> bool {
        let tx = self.db.begin().await.unwrap();
        let tried = tx.execute_unprepared(sql).await;
        let _ = tx.rollback().await;
        let Err(error) = tried else { return true };
        let error = error.to_string();
        let is_denied = ["permission denied", "must be owner", "command denied"]
            .iter()
            .any(|words| error.contains(words));
        let is_incomplete = ["null value", "violates", "doesn't have a default"]
            .iter()
            .any(|words| error.contains(words));
        assert!(is_denied || is_incomplete, "{sql}: {error}");
        !is_denied
    }
}

async fn roles_have_the_rights_of_the_table(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    planted.make_inbox().await;
    let place = &planted.place;
    writers::migrate_with(&place.db, &planted.names).await.unwrap();
    let of_table: BTreeSet<&str> = GRANTS
        .iter()
        .filter(|grant| matches!(grant.object, Object::Table(name) if name != "inbox_requests"))
        .filter(|grant| grant.when != When::Log)
        .map(|grant| grant.object.name())
        .collect();
    assert_eq!(of_table, TABLES.iter().map(|(table, _)| *table).collect());
    let others = [Role::Http, Role::LogRelay];
    for role in Role::value_variants()
        .iter()
        .copied()
        .filter(|role| !others.contains(role))
    {
        let login = Login::new(kind, place, &[role]).await;
        let granted = grants(&[role], |grant| grant.when != When::Log);
        for (table, column) in TABLES {
            let name = format!("{}.{table}", place.name);
            let tries = [
                ("SELECT", format!("SELECT 1 FROM {name} WHERE 1 = 0")),
                ("UPDATE", format!("UPDATE {name} SET {column} = NULL WHERE 1 = 0")),
                ("DELETE", format!("DELETE FROM {name} WHERE 1 = 0")),
                (
                    "INSERT",
                    match kind {
                        Kind::Postgres => format!("INSERT INTO {name} DEFAULT VALUES"),
                        _ => format!("INSERT INTO {name} () VALUES ()"),
                    },
                ),
                ("DROP", format!("DROP TABLE {name}")),
                ("ALTER", format!("ALTER TABLE {name} ADD COLUMN more int")),
                ("TRUNCATE", format!("TRUNCATE TABLE {name}")),
            ];
            for (privilege, sql) in tries {
                let is_granted = granted
                    .iter()
                    .any(|(object, all)| *object == Object::Table(table) && all.contains(&privilege));
                assert_eq!(login.may(&sql).await, is_granted, "{role}: {sql}");
            }
        }
        let call = match kind {
            Kind::Postgres => format!(
                "SELECT {}.outbox_record('order', '1', 'placed', '{{}}')",
                place.name
            ),
            _ => format!(
                "CALL {}.outbox_record('order', '1', 'placed', '{{}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
                place.name
            ),
        };
        let tx = login.db.begin().await.unwrap();
        let called = tx.execute_unprepared(&call).await;
        let _ = tx.rollback().await;
        assert_eq!(called.is_ok(), role == Role::SqlWriter, "{role}: {called:?}");
        login.close(kind, place).await;
    }
    planted.close().await;
}

async fn printed_rights_suffice_for_all_roles(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    planted.make_inbox().await;
    let place = &planted.place;
    let writer = Login::new(kind, place, &[Role::Writer]).await;
    let config = OutboxConfig::default().with_names(planted.names.clone());
    let outbox = OutboxConnection::new(writer.db.clone(), config);
    let tx = outbox.begin().await.unwrap();
    let (order_id, email) = ("1".to_owned(), String::new());
    outbox::sea_orm::record(&tx, [OrderPlaced { order_id, email }])
        .await
        .unwrap();
    tx.commit().await.unwrap();

    let relay = Login::new(kind, place, &[Role::Relay]).await;
    let file = place
        .outbox("shop")
        .replace("migrate = true\nwriters = true\n", "");
    let mut program = Program::start(&file, &[("DATABASE_URL", &relay.url), ("NATS_URL", &place.nats)]);
    program.until_ready().await;
    eventually("the event on the stream", async || {
        place.on_stream().await.len() == 1
    })
    .await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());

    let consumer = Login::new(kind, place, &[Role::Consumer]).await;
    planted.handle_as(consumer.db.clone()).await;
    assert_eq!(place.count("inbox_dead_letters", "consumer = 'billing'").await, 1);
    for login in [writer, relay, consumer] {
        login.close(kind, place).await;
    }
    planted.close().await;
}

pub(super) const READS: [&str; 21] = [
    "status",
    "list",
    "relay list",
    "doctor --viewer",
    "timeline order/0",
    "prove --since 1h --until 0s",
    "reconcile --since 1h --until 0s",
    "why order/0",
    "why order/1",
    "why order/2",
    "retry --all",
    "retry --skip --all",
    "replay --all",
    "resume order/2",
    "consumers list",
    "consumers pause billing --reason test",
    "dead-letters list",
    "dead-letters groups",
    "dead-letters retry --consumer billing",
    "pause --aggregate-type order",
    "audit",
];

async fn viewer_reads_and_operator_changes(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let (halting, backing_off) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, backing_off, failed()).await;
    let viewer = Login::new(kind, place, &[Role::Viewer]).await;
    let operator = Login::new(kind, place, &[Role::Operator]).await;
    let ask = |login: &Login, command: &str| -> Answer { logged_in(place, &login.url, &place.nats, command) };
    let letter = ask(&viewer, "dead-letters list -o json")
        .expect(0)
        .ids()
        .remove(0);
    let halting = halting.to_string();
    let reads = READS
        .map(str::to_owned)
        .into_iter()
        .chain([format!("show {halting}"), format!("dead-letters show {letter}")]);
    for command in reads {
        let answer = ask(&viewer, &command);
        let is_empty = command == "audit" && answer.code == Some(5);
        let is_expected = is_empty || matches!(answer.code, Some(0 | 3 | 4));
        assert!(is_expected && !answer.says("denied"), "{command}: {answer:?}");
    }
    let changes = [
        format!("retry --skip {halting} --yes"),
        format!("retry {halting} --yes"),
        "resume order/2 --yes".to_owned(),
        "replay --all --yes".to_owned(),
        format!("dead-letters retry {letter} --yes"),
        format!("dead-letters cancel-retry {letter} --yes"),
        format!("dead-letters discard {letter} --yes"),
        "consumers pause billing --reason test --yes".to_owned(),
        "consumers resume billing --yes".to_owned(),
        "pause --yes".to_owned(),
        "resume --yes".to_owned(),
    ];
    for command in &changes {
        let refused = if command.starts_with("consumers resume") {
            5
        } else {
            1
        };
        if !command.contains("cancel-retry") {
            let answer = ask(&viewer, command).expect(refused);
            assert!(
                refused == 5 || answer.said.contains("denied"),
                "{command}: {answer:?}"
            );
        }
    }
    for command in &changes {
        ask(&operator, command).expect(0);
    }
    let operations = ask(&viewer, "audit --limit 1 -o json").expect(0).ids();
    ask(&viewer, &format!("audit show {}", operations[0])).expect(0);
    let copies = format!(
        "DELETE FROM {}.outbox_messages WHERE published_at IS NULL",
        place.name
    );
    place.db.execute_unprepared(&copies).await.unwrap();
    let refused = ask(&viewer, "purge order/0 --yes").expect(1);
    assert!(refused.said.contains("denied"), "{refused:?}");
    ask(&operator, "purge order/0 --dead-letters --yes").expect(0);
    assert_eq!(place.count("outbox_messages", "aggregate_id = '0'").await, 0);
    viewer.close(kind, place).await;
    operator.close(kind, place).await;
    planted.close().await;
}

const RELAY: &str = "print grants --database postgres --role relay";

#[test]
fn names_reject_characters_that_end_a_statement() {
    for user in ["a\"; DROP TABLE x", "a'b", "a b", "a\\", ""] {
        run(&[&RELAY.words()[..], &["--user", user]].concat(), &[]).expect(2);
    }
    run(&format!("{RELAY} --user a --schema a.b"), &[]).expect(2);
}

#[test]
fn grants_contain_login_host_and_table_prefix() {
    let words = "print grants --database mariadb --role relay --user relay --host 10.0.% --prefix shop_";
    let grants = run(words, &[]).expect(0).out;
    assert!(
        grants.contains("GRANT SELECT, UPDATE, DELETE ON shop_outbox_messages TO 'relay'@'10.0.%';"),
        "{grants}"
    );
}

on_both_servers!(
    roles_have_the_rights_of_the_table,
    printed_rights_suffice_for_all_roles,
    viewer_reads_and_operator_changes
);

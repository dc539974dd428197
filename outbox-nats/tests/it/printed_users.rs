//! A server with users who have the permissions of `docs/reference/permissions.md`. Denied requests
//! are read from the server's log, so requests of every connection are found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use outbox_nats::async_nats::{Client, ConnectOptions};
use outbox_nats::{SubjectPrefix, connect_options, inbox_prefix};
use outbox_testing::free_port;
use tempfile::TempDir;

use crate::environment::{Nats, connected};
use crate::private_server::{PrivateServer, binary_of};

pub(crate) const NEWEST: &str = "OUTBOX_TEST_NATS_CLUSTER_BIN";
pub(crate) const OLDEST: &str = "OUTBOX_TEST_NATS_OLD_BIN";

pub(crate) const FIXED_SUBJECT: &str = "legacy.subject";

const PAGE: &str = include_str!("../../../docs/reference/permissions.md");

#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    name: &'static str,
    roles: &'static [&'static str],
    consumers: &'static [&'static str],
}

impl User {
    pub(crate) const fn new(name: &'static str, roles: &'static [&'static str]) -> Self {
        Self {
            name,
            roles,
            consumers: &["billing"],
        }
    }

    pub(crate) const fn of_consumers(self, consumers: &'static [&'static str]) -> Self {
        Self { consumers, ..self }
    }

    fn entry(&self) -> String {
        let table = table();
        let (mut publish, mut subscribe) = (BTreeSet::new(), BTreeSet::new());
        for role in self.roles {
            let (publishes, subscribes) = table
                .get(*role)
                .unwrap_or_else(|| panic!("no row of role `{role}`"));
            for consumer in self.consumers {
                publish.extend(
                    publishes
                        .iter()
                        .map(|subject| subject.replace("billing", consumer)),
                );
            }
            subscribe.extend(
                subscribes
                    .iter()
                    .map(|subject| subject.replace("<user>", self.name)),
            );
        }
        let (publish, subscribe) = (Vec::from_iter(publish), Vec::from_iter(subscribe));
        format!(
            "{{ user: {}, password: secret, permissions: {{ publish: {{ allow: {publish:?} }}, subscribe: {{ allow: {subscribe:?} }} }} }}",
            self.name
        )
    }
}

fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn table() -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let (_, table) = PAGE.split_once("| role | publish | subscribe |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let role = quoted(cells[1]).pop().unwrap();
        let mut publish = quoted(cells[2]);
        if cells[2].contains("and fixed subjects") {
            publish.push(FIXED_SUBJECT.to_owned());
        }
        (role, (publish, quoted(cells[3])))
    })
    .collect()
}

pub(crate) struct Users {
    server: PrivateServer,
    log: PathBuf,
    _folder: TempDir,
}

impl Users {
    pub(crate) async fn start(variable: &'static str, users: &[User]) -> Option<Self> {
        let binary = binary_of(variable)?;
        let folder = tempfile::tempdir().unwrap();
        let (config, log) = (folder.path().join("nats.conf"), folder.path().join("nats.log"));
        let entries: Vec<String> = users.iter().map(User::entry).collect();
        let text = format!(
            "authorization {{ users = [\n{{ user: admin, password: secret }}\n{}\n] }}\n",
            entries.join("\n")
        );
        std::fs::write(&config, text).unwrap();
        let arguments = ["-c", config.to_str().unwrap(), "-l", log.to_str().unwrap()];
        let mut server = PrivateServer::stopped(binary, free_port(), &arguments);
        server.restart().await;
        Some(Self {
            server,
            log,
            _folder: folder,
        })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn options(user: &str) -> ConnectOptions {
        connect_options()
            .user_and_password(user.to_owned(), "secret".to_owned())
            .custom_inbox_prefix(inbox_prefix(user))
    }

    pub(crate) async fn client(&self, user: &str) -> Client {
        connected(self.url(), Self::options(user)).await
    }

    pub(crate) async fn nats(&self, user: &str) -> Nats {
        let mut nats = Nats::with(self.client(user).await);
        nats.name = "EVENTS".to_owned();
        nats.prefix = SubjectPrefix::default();
        nats
    }

    /// Denied requests in the log. The server logs a denial before it answers later requests of the
    /// same connection.
    pub(crate) fn refused(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let is_refusal = |line: &&str| {
            ["Publish Violation", "Subscription Violation"]
                .iter()
                .any(|words| line.contains(words))
        };
        log.lines().filter(is_refusal).map(str::to_owned).collect()
    }
}

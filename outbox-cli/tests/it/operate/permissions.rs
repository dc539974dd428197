//! The printed NATS permissions suffice for each role, and other requests are denied.
//!
//! Method: a private server with users printed by `outbox print nats-permissions`.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use outbox::nats::async_nats::{Client, Event, ServerError, jetstream};
use outbox::nats::{connect_options, connect_with_events, inbox_prefix};
use outbox::prelude::*;
use outbox::testing::{backend_url, eventually, free_port};
use tempfile::TempDir;

use super::answer::{Answer, logged_in, run};
use super::plant::Planted;
use crate::place::{Kind, Program};

const USERS: [(&str, &[&str]); 5] = [
    ("relay", &["relay", "provision"]),
    // An inbox reports the age of its oldest message.
    ("billing", &["consumer", "make-consumer", "sequence"]),
    ("viewer", &["viewer"]),
    // Also reads the messages on the stream.
    ("operator", &["viewer", "reader"]),
    // `outbox reconcile --yes` reads the stream and publishes.
    ("reconciler", &["reader", "relay"]),
];

const LOG: &str = "nats.log";

pub(super) struct Server {
    process: Child,
    port: u16,
    denied: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    pub(super) async fn start(variable: &'static str, stream: &str) -> Option<Self> {
        let binary = backend_url(variable)?;
        let folder = tempfile::tempdir().unwrap();
        let mut users = "{ user: admin, password: secret }\n".to_owned();
        for (user, roles) in USERS {
            let mut words = vec![
                "print",
                "nats-permissions",
                "--user",
                user,
                "--stream",
                stream,
                "--prefix",
                stream,
            ];
            words.extend(["--consumer", "billing", "--consumer", "shipping"]);
            words.extend(roles.iter().flat_map(|role| ["--role", *role]));
            users.push_str(&run(&words, &[]).expect(0).out);
        }
        let config = folder.path().join("nats.conf");
        std::fs::write(&config, format!("authorization {{ users = [\n{users}] }}\n")).unwrap();
        let port = free_port();
        let process = Command::new(binary)
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .arg("-l")
            .arg(folder.path().join(LOG))
            .envs(USERS.map(|(user, _)| (format!("OUTBOX_{}_PASSWORD", user.to_uppercase()), "secret")))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            process,
            port,
            denied: Arc::default(),
            folder,
        };
        eventually("a server that listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        Some(server)
    }

    pub(super) fn url(&self, user: &str) -> String {
        format!("nats://{user}:secret@127.0.0.1:{}", self.port)
    }

    async fn client(&self, user: &'static str) -> Client {
        let denied = self.denied.clone();
        let options = connect_options()
            .user_and_password(user.to_owned(), "secret".to_owned())
            .custom_inbox_prefix(inbox_prefix(user));
        let address = format!("nats://127.0.0.1:{}", self.port);
        connect_with_events(address, options, move |event| {
            if let Event::ServerError(ServerError::Other(reason)) = event {
                denied.lock().unwrap().push(format!("{user}: {reason}"));
            }
        })
        .await
        .unwrap()
    }

    fn denied(&self) -> Vec<String> {
        self.denied.lock().unwrap().clone()
    }

    /// From the server log, so requests of child processes are included.
    pub(super) fn refused(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join(LOG)).unwrap();
        let is_refusal = |line: &&str| line.contains("Violation");
        log.lines().filter(is_refusal).map(str::to_owned).collect()
    }

    fn ask(&self, planted: &Planted, user: &str, command: &str) -> Answer {
        logged_in(&planted.place, &planted.place.url, &self.url(user), command)
    }

    async fn refuses(&self, user: &str, what: &str, subject: &str) {
        let refusal = format!("{what} to \"{subject}\"").to_lowercase();
        eventually(&format!("{user}: {refusal}"), async || {
            self.denied()
                .iter()
                .any(|denied| denied.starts_with(user) && denied.to_lowercase().contains(&refusal))
        })
        .await;
    }
}

async fn foreign_requests_are_refused(server: &Server, stream: &str) {
    let foreign = [
        ("billing", format!("$JS.API.STREAM.DELETE.{stream}")),
        ("billing", format!("$JS.API.STREAM.PURGE.{stream}")),
        ("billing", format!("$JS.API.CONSUMER.CREATE.{stream}.other")),
        ("billing", format!("{stream}.order.placed")),
        ("viewer", format!("$JS.API.CONSUMER.DELETE.{stream}.billing")),
        ("viewer", format!("$JS.API.STREAM.MSG.DELETE.{stream}")),
        ("viewer", format!("{stream}.order.placed")),
        ("operator", format!("$JS.API.STREAM.DELETE.{stream}")),
        ("operator", format!("{stream}.order.placed")),
        ("relay", format!("$JS.API.STREAM.DELETE.{stream}")),
        ("relay", format!("$JS.API.CONSUMER.DELETE.{stream}.billing")),
        ("relay", format!("$JS.ACK.{stream}.billing.1")),
        ("operator", format!("$JS.API.CONSUMER.DELETE.{stream}.billing")),
        ("operator", format!("$JS.API.CONSUMER.CREATE.{stream}.billing")),
        // Messages on the stream, except by the consumer itself.
        ("relay", format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.billing")),
        ("viewer", format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.billing")),
        ("billing", format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.other")),
    ];
    for (user, subject) in foreign {
        let client = server.client(user).await;
        client.publish(subject.clone(), "{}".into()).await.unwrap();
        client.flush().await.unwrap();
        server.refuses(user, "Publish", &subject).await;
    }
    for (user, _) in USERS {
        let (client, subject) = (server.client(user).await, format!("{stream}.>"));
        // A subscription must be open to be denied.
        let _open = client.subscribe(subject.clone()).await.unwrap();
        client.flush().await.unwrap();
        server.refuses(user, "Subscription", &subject).await;
    }
}

fn a_denied_look_names_the_command(server: &Server, planted: &Planted, stream: &str) {
    let denied = server.ask(planted, "relay", "doctor").expect(4);
    let subject = format!("nats denies this login to publish on `$JS.API.CONSUMER.LIST.{stream}`");
    let command = format!(
        "next: outbox print nats-permissions --role relay --role viewer --stream {stream} --prefix {stream}\n"
    );
    assert!(
        denied.out.contains(&subject) && denied.out.contains(&command),
        "{denied:?}"
    );
    assert!(!denied.out.contains("no answer"), "{denied:?}");
    let granted = server.ask(planted, "viewer", "doctor --viewer");
    assert!(!granted.says("denies"), "{granted:?}");
}

/// An operator sees the loss; publishing again needs a relay's permissions.
async fn what_is_lost_is_published_again_by_who_may_publish(
    server: &Server,
    planted: &Planted,
    stream: &str,
) {
    let admin = jetstream::new(server.client("admin").await);
    admin.delete_stream(stream).await.unwrap();
    let events = EventStream::new(stream).with_prefix(stream).unwrap();
    events.provision(&server.client("relay").await).await.unwrap();
    let span = "reconcile --since 1h --until 0s";
    let seen = server.ask(planted, "operator", span).expect(3);
    assert!(seen.said.contains("repeat it with `--yes`"), "{seen:?}");
    let yes = format!("{span} --yes");
    let refused = server.ask(planted, "operator", &yes).expect(1);
    assert!(refused.said.contains("permission"), "{refused:?}");
    server.ask(planted, "reconciler", &yes).expect(0);
    let mut handle = admin.get_stream(stream).await.unwrap();
    assert_eq!(handle.info().await.unwrap().state.messages, 1);
}

async fn each_user_does_its_work_and_nothing_else(variable: &'static str) {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let stream = planted.place.name.clone();
    let Some(server) = Server::start(variable, &stream).await else {
        return planted.close().await;
    };
    planted.placed("1").await;
    let as_relay = [
        ("DATABASE_URL", planted.place.url.clone()),
        ("NATS_URL", server.url("relay")),
    ];
    let variables: Vec<(&str, &str)> = as_relay
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let mut program = Program::start(&planted.place.outbox("shop"), &variables);
    program.until_ready().await;
    let admin = jetstream::new(server.client("admin").await);
    let messages = async || match admin.get_stream(&stream).await {
        Ok(mut stream) => stream.info().await.unwrap().state.messages,
        Err(_) => 0,
    };
    eventually("the event on the stream", async || messages().await == 1).await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());

    let consumer = server.client("billing").await;
    let events = EventStream::new(&stream).with_prefix(&stream).unwrap();
    // Another consumer name may be requested before it exists.
    let other = format!("$JS.API.CONSUMER.INFO.{stream}.shipping");
    consumer.request(other, "".into()).await.unwrap();
    planted.make_inbox().await;
    let inbox = Inbox::new(planted.place.db.clone(), events.subscriber(consumer));
    let inbox = inbox
        .with_names(planted.names.clone())
        .with_consumers(["billing"]);
    inbox.drain().await.unwrap();
    assert_eq!(
        planted
            .place
            .count("inbox_dead_letters", "consumer = 'billing'")
            .await,
        1
    );
    assert_eq!(
        server.refused(),
        [""; 0],
        "a request that the printed permissions do not grant"
    );

    for command in ["status", "consumers list", "consumers lag billing"] {
        let answer = server.ask(&planted, "viewer", command);
        assert!(
            matches!(answer.code, Some(0 | 3)) && !answer.out.contains("cannot be"),
            "{command}: {answer:?}"
        );
    }
    assert!(
        server
            .ask(&planted, "operator", "why order/1")
            .out
            .contains("on-stream")
    );

    a_denied_look_names_the_command(&server, &planted, &stream);
    foreign_requests_are_refused(&server, &stream).await;
    assert_eq!(messages().await, 1);
    let handle = admin.get_stream(&stream).await.unwrap();
    assert!(handle.consumer_info("billing").await.is_ok());
    what_is_lost_is_published_again_by_who_may_publish(&server, &planted, &stream).await;
    planted.close().await;
}

#[tokio::test]
async fn each_printed_user_of_the_newest_nats_does_its_work_and_nothing_else() {
    each_user_does_its_work_and_nothing_else("OUTBOX_TEST_NATS_CLUSTER_BIN").await;
}

#[tokio::test]
async fn each_printed_user_of_the_oldest_nats_does_its_work_and_nothing_else() {
    each_user_does_its_work_and_nothing_else("OUTBOX_TEST_NATS_OLD_BIN").await;
}

#[test]
fn a_role_of_consumers_needs_the_name_of_its_consumer() {
    let answer = run("print nats-permissions --role consumer", &[]).expect(2);
    assert!(answer.said.contains("--consumer NAME"), "{answer:?}");
}

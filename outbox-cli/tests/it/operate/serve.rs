//! `outbox serve` on real servers: page contents, and reading changes nothing.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use outbox::core::{OutboxAdmin as _, RelayHealth, Selection};
use outbox::testing::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::answer::run;
use super::plant::{Planted, dead};
use crate::place::{Kind, Place};

const ALL: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

pub(crate) struct Served {
    child: Child,
    log: Arc<Mutex<String>>,
    pub(crate) address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    pub(super) fn start(place: &Place, words: &[&str]) -> Self {
        Self::start_over(place, &place.url, words)
    }

    pub(super) fn start_over(place: &Place, database: &str, words: &[&str]) -> Self {
        let events =
            "events = [{ type = \"order.placed\", version = 1, sensitive = [\"email\"] }]\n[outbox.stream]";
        let config = place.outbox("shop").replace("[outbox.stream]", events);
        Self::start_with(place, database, &config, words)
    }

    pub(crate) fn start_with(place: &Place, database: &str, config: &str, words: &[&str]) -> Self {
        let file = place.folder.path().join("outbox.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(["serve", "--address", "127.0.0.1:0"])
            .args(["--timeout", "60s", "--config"])
            .arg(&file)
            .args(words)
            .env_clear()
            .envs([("DATABASE_URL", database), ("NATS_URL", place.nats.as_str())]);
        Self::launch(command)
    }

    pub(crate) fn launch(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next() else {
                panic!("it has ended: {said}");
            };
            let line = line.unwrap();
            if let Some((_, address)) = line.split_once("the dashboard is on http://") {
                break address.split('/').next().unwrap().to_owned();
            }
            said.push_str(&line);
        };
        let log = Arc::new(Mutex::new(String::new()));
        let writes = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = writes.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log, address }
    }

    pub(crate) fn ended(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while Arc::strong_count(&self.log) > 1 {
            std::thread::yield_now();
        }
        self.log.lock().unwrap().clone()
    }

    pub(crate) async fn get(&self, path: &str, headers: &[&str]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut text = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|line| line.starts_with("host:")) {
            text.push_str(&format!("host: {}\r\n", self.address));
        }
        for line in headers {
            text.push_str(line);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

#[tokio::test]
async fn pages_show_the_outbox_and_change_nothing() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let (id, _) = (planted.placed("1").await, planted.placed("1").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, id, dead(true)).await;
    let before = planted.store.list(&Selection::all(), ALL).await.unwrap();
    let served = Served::start(&planted.place, &[]);
    let message = format!("/messages/{id}");
    for (path, expected) in [
        ("/", "1 aggregate is halted by a dead letter"),
        ("/messages", id.to_string().as_str()),
        (&message, "maximum payload exceeded"),
        ("/aggregate?of=order/1", "dead-letter"),
    ] {
        let (status, page) = served.get(path, &[]).await;
        assert!(
            status == 200 && page.contains(expected),
            "{path}: {status} {page}"
        );
        assert!(!page.contains("order_id"), "{page}");
    }
    let after = planted.store.list(&Selection::all(), ALL).await.unwrap();
    assert_eq!(before, after);
    drop(served);
    planted.close().await;
}

/// DNS rebinding: a foreign site may resolve its name to this machine.
#[tokio::test]
async fn dashboard_answers_local_hosts_only() {
    let variables = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let open = run("serve --address 0.0.0.0:0", &variables).expect(2);
    assert!(open.said.contains("serves this machine only"), "{open:?}");
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let served = Served::start(&planted.place, &["--host", "ops.internal"]);
    for (host, expected) in [
        ("host: localhost:1", 200),
        ("host: ops.internal", 200),
        ("host: evil.example", 421),
    ] {
        assert_eq!(served.get("/", &[host]).await.0, expected, "{host}");
    }
    drop(served);
    planted.close().await;
}

fn links(page: &str, beginning: &str) -> Vec<String> {
    let mut found = Vec::new();
    for link in page.split("href=\"").skip(1) {
        let address = link.split('"').next().unwrap().replace("&amp;", "&");
        if address.starts_with(beginning) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[tokio::test]
async fn dead_letter_pages_group_by_error() {
    let Some(planted) = Planted::open(Kind::MariaDb).await else {
        return;
    };
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let served = Served::start(&planted.place, &[]);
    let (_, page) = served.get("/dead-letters", &[]).await;
    let alike = links(&page, "/dead-letters?");
    assert_eq!(alike.len(), 1, "{page}");
    let (_, page) = served.get(&alike[0], &[]).await;
    assert!(page.contains("outbox dead-letters retry --group "), "{page}");
    assert_eq!(page.matches("no price").count(), 3, "{page}");
    assert!(!page.contains("order_id"), "{page}");
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn stalled_consumer_has_lag_and_forecast() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    planted.placed("2").await;
    planted.placed("3").await;
    planted.publish().await;
    let served = Served::start(&planted.place, &[]);
    let mut page = String::new();
    eventually("a forecast", async || {
        page = served.get("/", &[]).await.1;
        page.contains("2 messages are left, and none are handled")
    })
    .await;
    assert!(page.contains("no process requested messages within"), "{page}");
    let letters = links(&page, "/dead-letters?consumer=billing");
    assert_eq!(letters.len(), 1, "{page}");
    assert_eq!(served.get(&letters[0], &[]).await.0, 200);
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn large_group_of_dead_letters_shows_its_oldest_fifty() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    for order in 1..=51 {
        planted.placed(&order.to_string()).await;
    }
    planted.publish().await;
    planted.handle().await;
    let served = Served::start(&planted.place, &[]);
    let (_, page) = served.get("/dead-letters", &[]).await;
    let group = links(&page, "/dead-letters?");
    let (_, page) = served.get(&group[0], &[]).await;
    assert_eq!(page.matches("no price").count(), 50, "{page}");
    assert!(page.contains("outbox dead-letters list --group "), "{page}");
    drop(served);
    planted.close().await;
}

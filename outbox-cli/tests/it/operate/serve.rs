//! `outbox serve` on real servers: who gets in, what the pages show, and that looking changes nothing.

use std::io::{BufRead, BufReader, Write as _};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use outbox::core::{Fitness, OutboxAdmin as _, Selection};
use outbox::testing::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::answer::{ask, run};
use super::plant::{Planted, dead};
use crate::place::{Kind, Place};

const ALL: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

pub(crate) const PASSWORD: &str = "correct horse battery";

/// `outbox serve` as a child process. It is killed when the test ends.
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
    /// Serves the outbox of a place on a free port.
    pub(super) fn start(place: &Place, words: &[&str]) -> Self {
        Self::start_over(place, &place.url, words)
    }

    /// The same over another way to the database.
    pub(super) fn start_over(place: &Place, database: &str, words: &[&str]) -> Self {
        let events =
            "events = [{ type = \"order.placed\", version = 1, sensitive = [\"email\"] }]\n[outbox.stream]";
        let config = place.outbox("shop").replace("[outbox.stream]", events);
        Self::start_with(place, database, &config, words)
    }

    /// The same with a file of this text.
    pub(crate) fn start_with(place: &Place, database: &str, config: &str, words: &[&str]) -> Self {
        let file = place.folder.path().join("outbox.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(["serve", "--address", "127.0.0.1:0"])
            // Longer than a busy machine stands still.
            .args(["--timeout", "60s", "--config"])
            .arg(&file)
            .args(words)
            .env_clear()
            .envs([("DATABASE_URL", database), ("NATS_URL", place.nats.as_str())]);
        Self::launch(command)
    }

    /// Starts a program that serves a dashboard, and says where.
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
                // Without the path that it may be under.
                break address.split('/').next().unwrap().to_owned();
            }
            said.push_str(&line);
        };
        // Nobody may stop reading, or the program could not write on.
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

    /// Kills the server and returns its log.
    pub(crate) fn ended(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The reader ends with the child, and lets go of its half.
        while Arc::strong_count(&self.log) > 1 {
            std::thread::yield_now();
        }
        self.log.lock().unwrap().clone()
    }

    /// Its number among the processes.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The status and the whole answer to a request with these lines of a header.
    pub(super) async fn ask(&self, request: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut text = format!(
            "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        if !headers.iter().any(|line| line.starts_with("host:")) {
            text.push_str(&format!("host: {}\r\n", self.address));
        }
        for line in headers {
            text.push_str(line);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.push_str(body);
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    pub(crate) async fn get(&self, path: &str, headers: &[&str]) -> (u16, String) {
        self.ask(&format!("GET {path}"), headers, "").await
    }

    /// What a page says to programs.
    pub(crate) async fn json(&self, path: &str) -> serde_json::Value {
        let (status, answer) = self.get(path, &[]).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

/// Makes a file of users, each with the same password, as `outbox serve --new-user` makes its lines.
pub(super) fn users(place: &Place, users: &[&str]) -> String {
    users_in(place.folder.path(), users)
}

/// The same in a folder.
pub(crate) fn users_in(folder: &Path, users: &[&str]) -> String {
    let path = folder.join("users");
    let mut file = String::new();
    for user in users {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["serve", "--new-user", user])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(format!("{PASSWORD}\n").as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        file.push_str(&String::from_utf8(output.stdout).unwrap());
    }
    assert!(!file.contains("horse"), "{file}");
    std::fs::write(&path, file).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(crate) fn basic(user: &str, password: &str) -> String {
    let encoded = data_encoding::BASE64.encode(format!("{user}:{password}").as_bytes());
    format!("authorization: Basic {encoded}")
}

async fn pages_show_the_outbox_and_change_nothing(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let (id, _) = (planted.placed("1").await, planted.placed("1").await);
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, id, dead(true)).await;
    let before = planted.store.list(&Selection::all(), ALL).await.unwrap();
    let served = Served::start(&planted.place, &[]);
    for (path, expected) in [
        (
            "/".to_owned(),
            "1 aggregate is halted by a dead letter".to_owned(),
        ),
        ("/messages".to_owned(), id.to_string()),
        (format!("/messages/{id}"), "maximum payload exceeded".to_owned()),
        ("/aggregate?of=order/1".to_owned(), "dead-letter".to_owned()),
        (
            format!("/change?change=retry&id={id}"),
            "It would retry 1 message".to_owned(),
        ),
    ] {
        let (status, page) = served.get(&path, &[]).await;
        assert!(
            status == 200 && page.contains(&expected),
            "{path}: {status} {page}"
        );
        assert!(!page.contains("ada@example.org"), "{page}");
    }
    let form = format!("change=retry&id={id}");
    let headers = [
        "content-type: application/x-www-form-urlencoded",
        "sec-fetch-site: same-origin",
    ];
    let (status, refused) = served.ask("POST /change", &headers, &form).await;
    assert!(
        status == 403 && refused.contains("your role"),
        "{status} {refused}"
    );
    let after = planted.store.list(&Selection::all(), ALL).await.unwrap();
    assert_eq!(before, after);
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn pages_show_an_outbox_of_postgres_and_change_nothing() {
    pages_show_the_outbox_and_change_nothing(Kind::Postgres).await;
}

#[tokio::test]
async fn pages_show_an_outbox_of_mariadb_and_change_nothing() {
    pages_show_the_outbox_and_change_nothing(Kind::MariaDb).await;
}

#[tokio::test]
async fn pages_show_an_outbox_of_sqlite_and_change_nothing() {
    pages_show_the_outbox_and_change_nothing(Kind::Sqlite).await;
}

#[tokio::test]
async fn users_log_in_with_their_password_and_have_their_role() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let id = planted.placed("1").await;
    let file = users(&planted.place, &["vera:viewer", "adam:admin"]);
    let served = Served::start(&planted.place, &["--users", &file]);
    let (status, answer) = served.get("/", &[]).await;
    assert!(
        status == 401 && answer.contains("www-authenticate: Basic"),
        "{answer}"
    );
    for (user, password) in [("vera", "wrong"), ("eve", PASSWORD), ("", "")] {
        let (status, _) = served.get("/messages", &[&basic(user, password)]).await;
        assert_eq!(status, 401, "{user}");
    }
    let path = format!("/messages/{id}.json");
    let (status, page) = served.get(&path, &[&basic("vera", PASSWORD)]).await;
    assert!(status == 200 && page.contains("\"payload\":null"), "{page}");
    let (status, page) = served.get(&path, &[&basic("adam", PASSWORD)]).await;
    assert!(
        status == 200 && page.contains("order_id") && !page.contains("ada@example.org"),
        "{page}"
    );
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn a_proxy_names_the_user_and_nobody_else_does() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let file = users(&planted.place, &["vera:viewer"]);
    let words = |proxy: &'static str| {
        ["--users", &file, "--proxy-header", "x-user", "--proxy", proxy].map(str::to_owned)
    };
    let start = |words: [String; 6]| Served::start(&planted.place, &words.each_ref().map(String::as_str));
    let served = start(words("127.0.0.1"));
    let (status, page) = served.get("/", &["x-user: vera"]).await;
    assert!(status == 200 && page.contains("vera (viewer)"), "{page}");
    for headers in [
        &["x-user: eve"][..],
        &["x-user: vera", "x-user: vera"],
        &[],
        &[&basic("vera", PASSWORD)],
    ] {
        assert_eq!(served.get("/", headers).await.0, 403, "{headers:?}");
    }
    let elsewhere = start(words("192.0.2.1"));
    assert_eq!(elsewhere.get("/", &["x-user: vera"]).await.0, 403);
    drop((served, elsewhere));
    planted.close().await;
}

/// A page of elsewhere may give its own name the address of this machine.
#[tokio::test]
async fn without_users_it_answers_on_this_machine_only_and_to_its_own_names() {
    let variables = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let open = run(&["serve", "--address", "0.0.0.0:0"], &variables).expect(2);
    assert!(open.said.contains("answers on this machine only"), "{open:?}");
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

#[tokio::test]
async fn the_audit_lists_operations_on_consumers_beside_those_on_the_outbox() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    let halting = planted.placed("2").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, halting, dead(true)).await;
    let place = &planted.place;
    ask(
        place,
        &["dead-letters", "retry", "--all", "--actor", "olga", "--yes"],
    )
    .expect(0);
    ask(place, &["retry", "--all", "--actor", "olga", "--yes"]).expect(0);
    let served = Served::start(place, &[]);
    let listed = ask(place, &["audit", "-o", "name"]).expect(0).out;
    let operations: Vec<&str> = listed.lines().collect();
    assert_eq!(operations.len(), 2, "{listed}");
    let (status, page) = served.get("/audit", &[]).await;
    assert_eq!(status, 200, "{page}");
    let places: Vec<_> = operations
        .iter()
        .map(|operation| page.find(&format!("/operations/{operation}")))
        .collect();
    assert!(places[0].is_some() && places[0] < places[1], "{places:?}: {page}");
    for operation in &operations {
        let (status, page) = served.get(&format!("/operations/{operation}"), &[]).await;
        assert!(status == 200 && page.contains("olga"), "{status} {page}");
    }
    let (_, of_letters) = served.get(&format!("/operations/{}", operations[1]), &[]).await;
    assert!(of_letters.contains(", 1 to be tried again, "), "{of_letters}");
    drop(served);
    planted.close().await;
}

/// The addresses to which a page links and that begin like this, each once.
pub(super) fn links(page: &str, beginning: &str) -> Vec<String> {
    let mut found = Vec::new();
    for link in page.split("href=\"").skip(1) {
        let address = link.split('"').next().unwrap().replace("&amp;", "&");
        if address.starts_with(beginning) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

async fn dead_letters_are_found_by_what_failed(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let file = users(&planted.place, &["vera:viewer", "adam:admin"]);
    let served = Served::start(&planted.place, &["--users", &file]);
    let (vera, adam) = (basic("vera", PASSWORD), basic("adam", PASSWORD));
    let get = async |path: &str, user: &str| {
        let (status, page) = served.get(path, &[user]).await;
        assert_eq!(status, 200, "{path}: {page}");
        assert!(!page.contains("ada@example.org"), "{path}: {page}");
        page
    };
    let json = async |path: &str, user: &str| -> serde_json::Value {
        let page = get(path, user).await;
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    // The orders have other numbers in their errors, and the same cause.
    let groups = json("/dead-letters.json", &vera).await;
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1, "{groups}");
    let group = &groups["groups"][0];
    assert_eq!(
        (&group["dead_letters"], &group["consumer"]),
        (&3.into(), &"billing".into())
    );
    let page = get("/dead-letters", &vera).await;
    let alike = links(&page, "/dead-letters?");
    assert_eq!(alike.len(), 1, "{page}");
    let fingerprint = group["fingerprint"].as_str().unwrap();
    assert!(alike[0].contains(fingerprint), "{alike:?}");
    let page = get(&alike[0], &vera).await;
    let letters = links(&page, "/dead-letters/");
    assert_eq!(letters.len(), 3, "{page}");
    for letter in &letters {
        let id = letter.trim_start_matches("/dead-letters/");
        let page = get(letter, &vera).await;
        assert!(
            page.contains("no price") && page.contains("Preview retry") && page.contains("Preview discard"),
            "{page}"
        );
        assert!(
            page.contains("(viewer) does not see payloads") && !page.contains("order_id"),
            "{page}"
        );
        let path = format!("{letter}.json");
        let seen = json(&path, &vera).await;
        assert_eq!(
            (&seen["id"], &seen["payload"]),
            (&id.into(), &serde_json::Value::Null)
        );
        let seen = json(&path, &adam).await;
        assert!(seen["payload"].as_str().unwrap().contains("order_id"), "{seen}");
    }
    let gone = "/dead-letters/019ab000-0000-7000-8000-000000000001";
    assert_eq!(served.get(gone, &[&vera]).await.0, 404);
    assert_eq!(served.get("/dead-letters/1", &[&vera]).await.0, 400);
    drop(served);
    planted.close().await;
}

#[tokio::test]
async fn dead_letters_in_postgres_are_found_by_what_failed() {
    dead_letters_are_found_by_what_failed(Kind::Postgres).await;
}

#[tokio::test]
async fn dead_letters_in_mariadb_are_found_by_what_failed() {
    dead_letters_are_found_by_what_failed(Kind::MariaDb).await;
}

#[tokio::test]
async fn dead_letters_in_sqlite_are_found_by_what_failed() {
    dead_letters_are_found_by_what_failed(Kind::Sqlite).await;
}

#[tokio::test]
async fn a_consumer_that_stands_still_is_shown_with_what_it_has_left_and_a_forecast() {
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
    let first = served.json("/overview.json").await;
    let billing = &first["consumers"][0];
    assert_eq!(
        (&billing["consumer"], &billing["undelivered"]),
        (&"billing".into(), &2.into()),
        "{first}"
    );
    assert_eq!(billing["dead_letters_open"], 1);
    // A look each ten seconds, and a forecast from the second one on.
    eventually("a forecast", async || {
        let seen = served.json("/overview.json").await;
        seen["forecast"]["between_seconds"].as_f64().unwrap() > 0.0
    })
    .await;
    let (_, page) = served.get("/", &[]).await;
    for expected in [
        "2 messages are left, and it handles none",
        "no process was seen asking for messages within",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let letters = links(&page, "/dead-letters?consumer=billing");
    assert_eq!(letters.len(), 1, "{page}");
    assert_eq!(served.get(&letters[0], &[]).await.0, 200);
    drop(served);
    planted.close().await;
}

//! `outbox tail` on real servers: what is recorded, what becomes of it, and what is committed late.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use outbox::testing::eventually;
use sea_orm::ConnectionTrait as _;

use super::answer::ask;
use super::plant::Planted;
use crate::place::Kind;

/// Longer than a line takes.
const LONG: Duration = Duration::from_secs(60);

async fn what_is_there_is_printed_and_filtered(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let (one, two) = (planted.placed("1").await, planted.viewed("2").await);
    let names = |words: &[&str]| {
        let all = [&["tail", "--until-idle", "-o", "name"], words].concat();
        let answer = ask(place, &all);
        (answer.code, answer.out)
    };
    let since = ["--since", "1h"];
    let of = |words: &[&str]| names(&[&since, words].concat());
    assert_eq!(of(&[]), (Some(0), format!("{one}\n{two}\n")));
    assert_eq!(of(&["--limit", "1"]), (Some(0), format!("{one}\n")));
    for filter in [
        ["--type", "order.pl*"],
        ["--type", "order.placed"],
        ["--aggregate", "order/1"],
    ] {
        assert_eq!(of(&filter), (Some(0), format!("{one}\n")), "{filter:?}");
    }
    assert_eq!(of(&["--status", "dead"]), (Some(5), String::new()));
    // Without `--since`, what is there is no news.
    assert_eq!(names(&[]), (Some(5), String::new()));
    let refused = ask(place, &["tail", "-o", "json"]).expect(2);
    assert!(refused.said.contains("use `-o jsonl`"), "{refused:?}");
    planted.close().await;
}

#[tokio::test]
async fn what_is_in_postgres_is_printed_and_filtered() {
    what_is_there_is_printed_and_filtered(Kind::Postgres).await;
}

#[tokio::test]
async fn what_is_in_mariadb_is_printed_and_filtered() {
    what_is_there_is_printed_and_filtered(Kind::MariaDb).await;
}

#[tokio::test]
async fn what_is_in_sqlite_is_printed_and_filtered() {
    what_is_there_is_printed_and_filtered(Kind::Sqlite).await;
}

/// The program, which follows.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Follower {
    fn start(planted: &Planted, words: &[&str]) -> Self {
        let place = &planted.place;
        let file = place.folder.path().join("tail.toml");
        std::fs::write(&file, place.outbox("shop")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["tail", "--config"])
            .arg(&file)
            .args(words)
            .env_clear()
            .envs([("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, (sender, lines)) = (child.stdout.take().unwrap(), channel());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Nobody may listen any more.
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(LONG).unwrap()
    }
}

#[cfg(unix)]
async fn a_late_commit_and_a_new_status_are_printed(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let first = planted.placed("1").await;
    let mut follower = Follower::start(&planted, &["--since", "1h", "-o", "csv"]);
    assert!(follower.next().starts_with("id,status,"));
    assert!(follower.next().starts_with(&format!("{first},pending,")));
    let (late, open) = planted.open_transaction("2").await;
    let early = planted.placed("3").await;
    assert!(follower.next().starts_with(&format!("{early},pending,")));
    open.commit().await.unwrap();
    assert!(follower.next().starts_with(&format!("{late},pending,")));
    planted.publish().await;
    let mut published: Vec<String> = (0..3).map(|_| follower.next()).collect();
    published.sort_unstable();
    let mut expected = [first, late, early].map(|id| format!("{id},published,"));
    expected.sort_unstable();
    for (line, start) in published.iter().zip(&expected) {
        assert!(line.starts_with(start), "{line}");
    }
    let process = rustix::process::Pid::from_child(&follower.child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert_eq!(follower.child.wait().unwrap().code(), Some(0));
    planted.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_late_commit_and_a_new_status_in_postgres_are_printed() {
    a_late_commit_and_a_new_status_are_printed(Kind::Postgres).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_late_commit_and_a_new_status_in_mariadb_are_printed() {
    a_late_commit_and_a_new_status_are_printed(Kind::MariaDb).await;
}

async fn a_row_behind_a_random_id_is_printed(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let random = "fffffff0-0000-4000-8000-000000000000";
    let first = planted.placed("1").await.to_string();
    let before = Follower::start(&planted, &["--since", "1h", "-o", "name"]);
    assert_eq!(before.next(), first);
    let (id, open) = planted.open_transaction("2").await;
    let id = id.to_string();
    let sql = |id: &str| match kind {
        Kind::Postgres => format!("'{id}'"),
        _ => format!("X'{}'", id.replace('-', "")),
    };
    let schema = planted.place.schema.as_ref().map(|schema| format!("{schema}."));
    let schema = schema.unwrap_or_default();
    let rename = |of: &str, id: &str| {
        let (of, id) = (sql(of), sql(id));
        format!("UPDATE {schema}outbox_messages SET id = {id} WHERE id = {of}")
    };
    open.execute_unprepared(&rename(&id, random)).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(before.next(), random);
    let after = Follower::start(&planted, &["--since", "1h", "--window", "1s", "-o", "name"]);
    assert_eq!([after.next(), after.next()], [first.clone(), random.to_owned()]);
    let begun = std::time::Instant::now();
    eventually("the end of the window", async || begun.elapsed().as_secs() >= 4).await;
    for order in ["3", "4"] {
        let later = planted.placed(order).await.to_string();
        assert_eq!([before.next(), after.next()], [later.clone(), later]);
    }
    // An id before all times is in the span of its recording.
    let low = "00000000-0000-4000-8000-000000000000";
    planted.place.execute(&rename(&first, low)).await;
    for words in [["list", "-o", "name"], ["timeline", "order/1", "-ojson"]] {
        let listed = ask(&planted.place, &[&words[..], &["--since", "1h"]].concat()).expect(0);
        assert!(listed.out.contains(low), "{listed:?}");
    }
    planted.close().await;
}

#[tokio::test]
async fn a_row_behind_a_random_id_in_postgres_is_printed() {
    a_row_behind_a_random_id_is_printed(Kind::Postgres).await;
}

#[tokio::test]
async fn a_row_behind_a_random_id_in_sqlite_is_printed() {
    a_row_behind_a_random_id_is_printed(Kind::Sqlite).await;
}

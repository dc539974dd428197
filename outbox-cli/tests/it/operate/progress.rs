//! Progress is for people at a terminal: a pipe sees nothing of it, nor does somebody who asks for JSON or for quiet.
#![cfg(unix)]

use std::io::Read as _;
use std::process::{Command, Stdio};

use outbox::core::Fitness;

use super::answer::run;
use super::plant::{Planted, dead};
use super::pty;
use crate::place::{Kind, Place};

/// What the program writes to a terminal that is its standard error. The data goes nowhere.
fn on_a_terminal(place: &Place, words: &[&str]) -> String {
    let (mut screen, terminal) = pty::open();
    let mut program = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(words)
        .env_clear()
        .envs([
            ("DATABASE_URL", &*place.url),
            ("NATS_URL", &*place.nats),
            ("TERM", "xterm"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(terminal)
        .spawn()
        .unwrap();
    let mut seen = String::new();
    // Reading ends with an error when the program, which has the only other end, is gone.
    let _ = screen.read_to_string(&mut seen);
    assert!(program.wait().unwrap().success(), "{words:?}: {seen}");
    seen
}

/// Carries a command out four times, with this at the end of the file of the configuration: only the second time shows progress.
fn is_seen_on_a_terminal_only(place: &Place, more: &str, command: &str, shown: &str) {
    let file = place.folder.path().join("progress.toml");
    std::fs::write(&file, place.outbox("shop") + more).unwrap();
    let file = ["--config", file.to_str().unwrap()];
    let words: Vec<&str> = command.split(' ').chain(file).collect();
    let servers = [("DATABASE_URL", &*place.url), ("NATS_URL", &*place.nats)];
    let piped = run(&words, &servers).expect(0);
    assert!(
        !piped.said.contains(shown) && !piped.out.contains(shown),
        "{piped:?}"
    );
    assert!(!piped.said.contains('\u{1b}'), "{piped:?}");
    let seen = on_a_terminal(place, &words);
    assert!(seen.contains(shown), "{command}: {seen:?}");
    for more in [["-o", "json"].as_slice(), &["--quiet"]] {
        let seen = on_a_terminal(place, &[&words, more].concat());
        assert!(!seen.contains(shown), "{command} {more:?}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_seen_on_a_terminal_only() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    // One that only counts, one that draws up a ledger, and one that changes.
    for (command, shown) in [
        ("reconcile --since 1h --until 0s", "compared: "),
        ("prove --since 1h --until 0s", "reading the outbox: "),
        ("replay --all --yes", "replay: "),
    ] {
        is_seen_on_a_terminal_only(&planted.place, "", command, shown);
    }
    planted.close().await;
}

/// Each run takes one of four away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_of_what_can_be_done_once_is_seen_on_a_terminal_only() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    for order in ["1", "2", "3", "4"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    let mut letters = Vec::new();
    for order in ["5", "6", "7", "8", "9", "10", "11", "12"] {
        letters.push(planted.placed(order).await);
    }
    let (_, leases) = planted.relay(Fitness::Fit).await;
    for letter in letters {
        planted.settle(&leases, letter, dead(true)).await;
    }
    for (command, shown) in [
        ("skip --all --first 1 --yes", "skip: "),
        ("retry --all --first 1 --yes", "retry: "),
        ("purge --first 1 --yes", "purge: "),
    ] {
        // What is published may go at once.
        let more = "[outbox.relay]\nretention = \"0s\"\n";
        is_seen_on_a_terminal_only(&planted.place, more, command, shown);
    }
    planted.close().await;
}

//! Progress is for people at a terminal: a pipe sees nothing of it, nor does somebody who asks for JSON or for quiet.
#![cfg(unix)]

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::answer::ask;
use super::plant::Planted;
use crate::place::{Kind, Place};

/// What the program writes to a terminal that is its standard error. The data goes nowhere.
fn on_a_terminal(place: &Place, words: &[&str]) -> String {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&keyboard).unwrap();
    unlockpt(&keyboard).unwrap();
    let name = ptsname(&keyboard, Vec::new()).unwrap();
    let name = std::ffi::OsStr::from_bytes(name.to_bytes());
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let file = place.folder.path().join("outbox.toml");
    let mut program = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(words)
        .args(["--config", file.to_str().unwrap()])
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
    let _ = File::from(keyboard).read_to_string(&mut seen);
    assert!(program.wait().unwrap().success(), "{words:?}: {seen}");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_seen_on_a_terminal_only() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    // One that only counts, and one that draws up a ledger. The pipe comes first, and writes the file of the configuration.
    for (command, shown) in [
        ("reconcile --since 1h --until 0s", "compared: "),
        ("prove --since 1h --until 0s", "reading the outbox: "),
        ("replay --all --yes", "replay: "),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let piped = ask(place, &words).expect(0);
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
    planted.close().await;
}

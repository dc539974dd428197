//! `outbox top` on a terminal of its own, over a real outbox.
#![cfg(all(unix, feature = "tui"))]

use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use outbox::core::Fitness;
use outbox::testing::eventually;
use rustix::termios::{Winsize, tcsetwinsize};

use super::answer::ask;
use super::plant::{Planted, dead};
use super::pty;
use crate::place::Kind;

const ROWS: u16 = 40;
const COLUMNS: u16 = 160;

/// The lines of the screen after this was written to it. Only what differs from the picture before is written, so a text may come in pieces.
fn screen(written: &str) -> String {
    let mut cells = vec![vec![' '; usize::from(COLUMNS)]; usize::from(ROWS)];
    let (mut row, mut column) = (0, 0);
    let mut characters = written.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                *cell = character;
            }
            column += 1;
            continue;
        }
        // `[`, the numbers, and a letter that says what to do. Colours and the like leave the text as it is.
        let mut numbers = String::new();
        let letter = characters.by_ref().skip(1).find(|character| {
            numbers.push(*character);
            character.is_ascii_alphabetic()
        });
        let place = numbers.trim_end_matches('H').split_once(';');
        match (letter, place) {
            (Some('H'), Some((line, at))) => {
                (row, column) = (line.parse().unwrap_or(1) - 1, at.parse().unwrap_or(1) - 1);
            }
            (Some('J'), _) => cells.iter_mut().for_each(|line| line.fill(' ')),
            _ => {}
        }
    }
    let lines: Vec<String> = cells.into_iter().map(String::from_iter).collect();
    lines.join("\n")
}

/// The program on its terminal. It is killed if the test fails.
struct Top {
    child: Child,
    person: std::fs::File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Top {
    fn start(planted: &Planted) -> Self {
        let (person, terminal) = pty::open();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let place = &planted.place;
        let child = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["top", "--every", "1s", "--config"])
            .arg(place.folder.path().join("outbox.toml"))
            .env_clear()
            .envs([
                ("DATABASE_URL", &*place.url),
                ("NATS_URL", &*place.nats),
                ("TERM", "xterm"),
            ])
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal)
            .spawn()
            .unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, kept) = (person.try_clone().unwrap(), written.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading ends with an error when the program, which has the only other end, is gone.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            child,
            person,
            written,
        }
    }

    /// All that it has written.
    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until this is on the screen.
    async fn shows(&self, expected: &str) {
        eventually(&format!("`{expected}` on the screen"), async || {
            screen(&self.written()).contains(expected)
        })
        .await;
    }

    fn press(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }
}

#[tokio::test]
async fn top_shows_the_overview_and_why_and_ends_with_the_terminal_as_it_was() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("0").await;
    planted.publish().await;
    let id = planted.placed("1").await;
    planted.placed("1").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, id, dead(true)).await;
    // It writes the file of the configuration.
    ask(&planted.place, &["status"]).expect(3);
    let mut top = Top::start(&planted);
    top.shows(&format!("shop -> {}: degraded", planted.place.name))
        .await;
    top.shows("1 aggregate is halted by a dead letter").await;
    // The page of blocked aggregates, and why the first one is.
    top.press("4");
    top.shows("order/1").await;
    top.press("\r");
    top.shows("why order/1").await;
    top.shows("dead-letter: ").await;
    top.press("q");
    let mut code = None;
    eventually("the end of the program", async || {
        code = top.child.try_wait().unwrap();
        code.is_some()
    })
    .await;
    assert_eq!(code.unwrap().code(), Some(0));
    // It had a screen of its own, and has left it.
    eventually("a screen that is left", async || {
        let written = top.written();
        let left = written.rfind("\u{1b}[?1049l");
        left.is_some() && written.rfind("\u{1b}[?1049h") < left
    })
    .await;
    planted.close().await;
}

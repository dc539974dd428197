//! Confirmation of production changes, without a terminal and on a pseudo-terminal.

use outbox::core::RelayHealth;

use super::answer::{Answer, run};
use super::plant::{Planted, dead};
use crate::place::Kind;

struct Shop {
    planted: Planted,
    file: String,
}

impl Shop {
    async fn open() -> Option<Self> {
        let planted = Planted::open(Kind::Postgres).await?;
        let id = planted.placed("1").await;
        let (_, leases) = planted.relay(RelayHealth::Healthy).await;
        planted.settle(&leases, id, dead(true)).await;
        let file = planted.place.folder.path().join("shop.toml");
        let text = format!("production = true\n{}", planted.place.outbox("shop"));
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        Some(Self { planted, file })
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        vec![
            ("OUTBOX_CONFIG", &self.file),
            ("DATABASE_URL", &self.planted.place.url),
            ("NATS_URL", &self.planted.place.nats),
        ]
    }

    fn ask(&self, words: &str) -> Answer {
        run(words, &self.variables())
    }

    fn is_dead(&self) -> bool {
        self.ask("list --status dead").code == Some(0)
    }
}

#[tokio::test]
async fn production_without_terminal_needs_confirmed_count() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let preview = shop.ask("retry --all").expect(0);
    assert!(preview.out.starts_with("would retry 1 message "), "{preview:?}");
    assert!(
        preview.said.contains("production, outbox `shop`: postgres "),
        "{preview:?}"
    );
    let refused = shop.ask("retry --all --yes").expect(2);
    assert!(refused.said.contains("re-run with `--confirm 1`"), "{refused:?}");
    let refused = shop.ask("retry --all --yes --confirm 2").expect(2);
    assert!(
        refused
            .said
            .contains("the preview counts 1, not 2: nothing was changed"),
        "{refused:?}"
    );
    shop.ask("retry --all --confirm 1").expect(2);
    assert!(shop.is_dead());
    shop.ask("retry --all --yes --confirm 1").expect(0);
    assert!(!shop.is_dead());
    shop.ask("retry --all --yes").expect(5);
    shop.planted.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn production_on_a_terminal_asks_for_the_number() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let retry = "retry --all --yes";
    for typed in ["y\n", "2\n", "\n"] {
        let code = terminal::run(retry, &shop.variables(), typed);
        assert_eq!(code, Some(2), "{typed}");
        assert!(shop.is_dead(), "{typed}");
    }
    assert_eq!(terminal::run(retry, &shop.variables(), "1\n"), Some(0));
    assert!(!shop.is_dead());
    shop.planted.close().await;
}

#[cfg(unix)]
mod terminal {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use crate::operate::pty;

    pub(super) fn run(words: &str, variables: &[(&str, &str)], typed: &str) -> Option<i32> {
        let (mut keyboard, terminal) = pty::open();
        // The terminal buffers the input until the program reads it.
        keyboard.write_all(typed.as_bytes()).unwrap();
        let status = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(words.split(' '))
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(terminal.try_clone().unwrap())
            .stderr(terminal)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        drop(keyboard);
        status.code()
    }
}

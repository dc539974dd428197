//! Contexts, and what stands between `--yes` and a change in production, without a terminal and on a pseudo-terminal.

use outbox::core::Fitness;

use super::answer::{Answer, run};
use super::plant::{Planted, dead};
use crate::place::Kind;

/// An outbox with a dead letter, reached by the contexts `dev` and `prod`.
struct Shop {
    planted: Planted,
    contexts: String,
}

impl Shop {
    async fn open() -> Option<Self> {
        let planted = Planted::open(Kind::Postgres).await?;
        let id = planted.placed("1").await;
        let (_, leases) = planted.relay(Fitness::Fit).await;
        planted.settle(&leases, id, dead(true)).await;
        let folder = planted.place.folder.path();
        std::fs::write(folder.join("shop.toml"), planted.place.outbox("shop")).unwrap();
        let servers = "config = \"shop.toml\"\nenv = { DATABASE_URL = \"SHOP_DATABASE_URL\", NATS_URL = \"SHOP_NATS_URL\" }";
        let text = format!("[context.dev]\n{servers}\n[context.prod]\n{servers}\nproduction = true\n");
        let contexts = folder.join("contexts.toml");
        std::fs::write(&contexts, text).unwrap();
        let contexts = contexts.to_str().unwrap().to_owned();
        Some(Self { planted, contexts })
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        vec![
            ("OUTBOX_CONTEXTS", &self.contexts),
            ("SHOP_DATABASE_URL", &self.planted.place.url),
            ("SHOP_NATS_URL", &self.planted.place.nats),
        ]
    }

    fn ask(&self, words: &[&str]) -> Answer {
        run(words, &self.variables())
    }

    fn is_dead(&self) -> bool {
        let words = ["list", "--status", "dead", "--context", "dev"];
        self.ask(&words).code == Some(0)
    }
}

#[tokio::test]
async fn with_several_contexts_a_change_names_one() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let listed = shop.ask(&["contexts", "-o", "name"]).expect(0);
    assert_eq!(listed.out, "dev\nprod\n");
    let mut variables = shop.variables();
    variables.push(("OUTBOX_CONTEXT", "dev"));
    // To read, the environment may name it.
    run(&["list"], &variables).expect(0);
    for words in [&["retry", "--all"][..], &["retry", "--all", "--yes"]] {
        let refused = run(words, &variables).expect(2);
        assert!(
            refused
                .said
                .contains("say which one with `--context NAME`, out of `dev`, `prod`"),
            "{refused:?}"
        );
    }
    assert!(shop.is_dead());
    let unknown = shop.ask(&["list", "--context", "test"]).expect(2);
    assert!(
        unknown
            .said
            .contains("there is no context `test`; the file has `dev`, `prod`"),
        "{unknown:?}"
    );
    shop.ask(&["list", "--context", "dev", "--config", "x.toml"])
        .expect(2);
    let changed = shop
        .ask(&["retry", "--all", "--context", "dev", "--yes"])
        .expect(0);
    assert!(
        changed.said.contains("context `dev`, outbox `shop`: postgres ") && !changed.said.contains('@'),
        "{changed:?}"
    );
    shop.planted.close().await;
}

#[tokio::test]
async fn production_without_a_terminal_needs_the_number_of_the_preview() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let retry = ["retry", "--all", "--context", "prod"];
    let preview = shop.ask(&retry).expect(0);
    assert!(preview.out.starts_with("would retry 1 message "), "{preview:?}");
    assert!(
        preview
            .said
            .contains("context `prod` (production), outbox `shop`"),
        "{preview:?}"
    );
    let refused = shop.ask(&[&retry[..], &["--yes"]].concat()).expect(2);
    assert!(
        refused.said.contains("repeat it with `--confirm 1`"),
        "{refused:?}"
    );
    let refused = shop
        .ask(&[&retry[..], &["--yes", "--confirm", "2"]].concat())
        .expect(2);
    assert!(
        refused
            .said
            .contains("it would change 1, and not 2: nothing was changed"),
        "{refused:?}"
    );
    // A number alone is no consent.
    shop.ask(&[&retry[..], &["--confirm", "1"]].concat()).expect(2);
    assert!(shop.is_dead());
    shop.ask(&[&retry[..], &["--yes", "--confirm", "1"]].concat())
        .expect(0);
    assert!(!shop.is_dead());
    // Of nothing there is nothing to confirm.
    shop.ask(&[&retry[..], &["--yes"]].concat()).expect(5);
    shop.planted.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn production_on_a_terminal_asks_for_the_number() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let retry = ["retry", "--all", "--context", "prod", "--yes"];
    for typed in ["y\n", "2\n", "\n"] {
        let code = terminal::run(&retry, &shop.variables(), typed);
        assert_eq!(code, Some(2), "{typed}");
        assert!(shop.is_dead(), "{typed}");
    }
    assert_eq!(terminal::run(&retry, &shop.variables(), "1\n"), Some(0));
    assert!(!shop.is_dead());
    shop.planted.close().await;
}

/// Runs the program on a pseudo-terminal.
#[cfg(unix)]
mod terminal {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use crate::operate::pty;

    /// Its exit code, after this was typed.
    pub(super) fn run(words: &[&str], variables: &[(&str, &str)], typed: &str) -> Option<i32> {
        let (mut keyboard, terminal) = pty::open();
        // The terminal keeps what is typed until the program reads it.
        keyboard.write_all(typed.as_bytes()).unwrap();
        let status = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(words)
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

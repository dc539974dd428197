//! Missing SQLite files, and configurations with several outboxes.

use std::process::Command;

use super::answer::{Words as _, run};
use super::plant::Planted;
use crate::place::Kind;

/// A misspelt file address must not create an empty database.
#[test]
fn no_command_but_migrate_makes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (config, database) = (
        folder.path().join("outbox.toml"),
        folder.path().join("missing.db"),
    );
    std::fs::write(
        &config,
        "[[outbox]]\nname = \"shop\"\n[outbox.stream]\nname = \"SHOP\"\n",
    )
    .unwrap();
    let address = format!("sqlite://{}?mode=rwc", database.display());
    let variables = [
        ("DATABASE_URL", address.as_str()),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    for words in [
        "status",
        "relay list",
        "list",
        "audit",
        "why order/1",
        "doctor",
        "doctor --viewer",
        "retry --all",
        "pause --yes",
    ] {
        let words = format!("{words} --timeout 5s --config {}", config.display());
        let answer = run(&words, &variables);
        assert!(matches!(answer.code, Some(1 | 4)), "{words}: {answer:?}");
        assert!(!database.exists(), "{words}");
    }
    run(
        &format!("migrate --yes --config {}", config.display()),
        &variables,
    )
    .expect(0);
    assert!(database.exists());
}

fn next(text: &str) -> &str {
    let (_, next) = text
        .split_once("next: ")
        .unwrap_or_else(|| panic!("no next: {text}"));
    next.lines().next().unwrap()
}

fn copied(command: &str, variables: &[(&str, &str)]) -> Option<i32> {
    let program = format!("'{}'", env!("CARGO_BIN_EXE_outbox"));
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &command.replacen("outbox", &program, 1)]);
    let shell = shell.env_clear().envs(variables.iter().copied());
    shell.output().unwrap().status.code()
}

/// Without `--config`, the suggested command would address another outbox.
#[tokio::test]
async fn suggested_command_keeps_the_given_options() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    let file = place.folder.path().join("the shop's.toml");
    let other = place.outbox("other");
    let other = other.replace("[outbox.stream]", "prefix = \"b_\"\n[outbox.stream]");
    std::fs::write(&file, place.outbox("shop") + &other).unwrap();
    let file = file.to_str().unwrap();
    let servers = [("DATABASE_URL", place.url.as_str()), ("NATS_URL", &place.nats)];
    let by_option = (servers.to_vec(), vec!["--config", file, "--outbox", "shop"]);
    let variables = [&servers[..], &[("OUTBOX_CONFIG", file)]].concat();
    let by_variable = (variables, vec!["--outbox", "shop"]);
    for (variables, options) in [by_option, by_variable] {
        for (words, kept) in [
            ("timeline order/nobody", " --config "),
            ("show 019ab000-0000-7000-8000-000000000001", "--outbox shop"),
            ("status", "outbox relay list --config "),
        ] {
            let answer = run(&[&words.words()[..], &options].concat(), &variables);
            let text = answer.out + &answer.said;
            assert!(next(&text).contains(kept), "{words}: {text}");
            assert_eq!(copied(next(&text), &variables), Some(5), "{words}: {text}");
        }
    }
    planted.close().await;
}

#[test]
fn suggested_commands_select_the_outbox() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    let outbox = |name: &str| {
        format!("[[outbox]]\nname = \"{name}\"\nprefix = \"{name}_\"\n[outbox.stream]\nname = \"SHOP\"\n")
    };
    std::fs::write(&config, ["a", "b"].map(outbox).concat()).unwrap();
    let file = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
    let variables = [
        ("DATABASE_URL", file.as_str()),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let config = config.to_str().unwrap();
    for name in ["a", "b"] {
        for words in ["migrate", "pause --aggregate-type order --reason overrun"] {
            let words = format!("{words} --yes --config {config} --outbox {name}");
            run(&words, &variables).expect(0);
        }
    }
    let answer = run(&format!("status --timeout 5s --config {config}"), &variables);
    for name in ["a", "b"] {
        let named = format!("order --outbox {name} --config {config}\n");
        assert!(answer.out.contains(&named), "{named}: {answer:?}");
    }
}

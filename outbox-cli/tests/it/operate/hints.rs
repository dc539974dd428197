//! Suggested commands run as printed.

use std::process::Command;

use uuid::Uuid;

use super::answer::{Answer, Words as _, run};
use super::plant::Planted;
use crate::place::Kind;

fn copied(command: &str, variables: &[(&str, &str)]) -> Option<i32> {
    let program = format!("'{}'", env!("CARGO_BIN_EXE_outbox"));
    let output = Command::new("/bin/sh")
        .args(["-c", &command.replacen("outbox", &program, 1)])
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    output.status.code()
}

fn next(text: &str) -> &str {
    let (_, next) = text
        .split_once("next: ")
        .unwrap_or_else(|| panic!("no next: {text}"));
    next.lines().next().unwrap()
}

/// Without `--config`, the suggested command would address another outbox.
#[tokio::test]
async fn suggested_command_keeps_the_given_options() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    let file = place.folder.path().join("the shop's.toml");
    let other = place
        .outbox("other")
        .replace("[outbox.stream]", "prefix = \"b_\"\n[outbox.stream]");
    std::fs::write(&file, place.outbox("shop") + &other).unwrap();
    let file = file.to_str().unwrap();
    let servers = [("DATABASE_URL", place.url.as_str()), ("NATS_URL", &place.nats)];
    let unknown = Uuid::now_v7().to_string();
    let by_option = (servers.to_vec(), vec!["--config", file, "--outbox", "shop"]);
    let by_variable = (
        [&servers[..], &[("OUTBOX_CONFIG", file)]].concat(),
        vec!["--outbox", "shop"],
    );
    for (variables, options) in [by_option, by_variable] {
        let ask = |words: &str| -> Answer { run(&[&words.words()[..], &options].concat(), &variables) };
        let text = ask("timeline order/nobody").expect(5).said;
        assert!(next(&text).contains(" --config "), "{text}");
        assert_eq!(copied(next(&text), &variables), Some(5), "{text}");
        let text = ask(&format!("show {unknown}")).said;
        assert!(next(&text).contains("--outbox shop"), "{text}");
        assert_eq!(copied(next(&text), &variables), Some(5), "{text}");
        let text = ask("status").out;
        let relays = next(&text);
        assert!(relays.contains("outbox relay list --config "), "{text}");
        assert_eq!(copied(relays, &variables), Some(5), "{text}");
    }
    planted.close().await;
}

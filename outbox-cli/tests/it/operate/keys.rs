//! JSON keys of every command, compared with a file. `OUTBOX_BLESS=1` rewrites it.
//!
//! Invariant: a removed key or a changed type breaks users and needs a changelog entry.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::CommandFactory as _;
use outbox::core::Fitness;
use serde_json::Value;

use super::answer::{ask, run};
use super::plant::{Planted, dead, failed};
use crate::place::Kind;

/// Run in this order, so only the last commands may change something.
const COMMANDS: &[(&str, &[&str])] = &[
    ("status", &["status", "status --forecast=1s"]),
    ("migrate", &["migrate"]),
    ("doctor", &["doctor"]),
    ("list", &["list"]),
    (
        "show",
        &["show {halting} --payload", "show {damaged}", "show {due}"],
    ),
    ("relay list", &["relay list"]),
    ("timeline", &["timeline order/0", "timeline order/2"]),
    ("why", &["why order/0", "why {failed}", "why order/2"]),
    ("prove", &["prove --since 1h --until 0s"]),
    (
        "consumers list",
        &["consumers list", "consumers list --forecast=1s"],
    ),
    (
        "consumers lag",
        &["consumers lag billing", "consumers lag nobody"],
    ),
    ("dead-letters list", &["dead-letters list"]),
    ("dead-letters groups", &["dead-letters groups"]),
    (
        "dead-letters show",
        &[
            "dead-letters show {letter} --payload",
            "dead-letters show {letter}",
        ],
    ),
    (
        "retry, skip, replay without --yes",
        &["retry --all", "retry --skip --all", "replay --all"],
    ),
    ("resume without --yes", &["resume order/1", "resume order/2"]),
    (
        "retry, skip, replay with --yes",
        &[
            "retry --skip {halting} --yes",
            "retry {halting} --yes",
            "replay --all --yes",
        ],
    ),
    (
        "reconcile",
        &[
            "reconcile --since 1h --until 0s",
            "reconcile --since 1h --until 0s --yes",
        ],
    ),
    ("audit", &["audit"]),
    ("audit show", &["audit show {operation}"]),
    ("resume with --yes", &["resume order/1 --yes"]),
    (
        "pause, and resume of a pause",
        &[
            "pause --aggregate-type order --for 2h",
            "pause --aggregate-type order --for 2h --yes",
            "pause --yes",
            "pause --aggregate-type order",
            "resume",
            "resume --yes",
        ],
    ),
    ("pause --list", &["pause --list"]),
    ("status while something is paused", &["status"]),
    ("purge without --yes", &["purge order/0"]),
    ("purge with --yes", &["purge order/0 order/3 --yes"]),
    (
        "dead-letters retry, cancel-retry, discard without --yes",
        &[
            "dead-letters retry {letter}",
            "dead-letters cancel-retry {letter}",
            "dead-letters discard {letter}",
        ],
    ),
    (
        "dead-letters retry, cancel-retry, discard with --yes",
        &[
            "dead-letters retry {letter} --yes",
            "dead-letters cancel-retry {letter} --yes",
            "dead-letters discard {letter} --yes",
        ],
    ),
    (
        "consumers pause, resume",
        &[
            "consumers pause billing --reason trouble",
            "consumers pause billing --reason trouble --yes",
            "consumers resume billing",
            "consumers resume billing --yes",
        ],
    ),
    ("migrate with --yes", &["migrate --tables writers --yes"]),
];

const OF_LOG: &[(&str, &[&str])] = &[
    ("relay log init without --yes", &["relay log init"]),
    ("relay log init with --yes", &["relay log init --yes"]),
    ("relay log drop without --yes", &["relay log drop"]),
    ("relay log drop with --yes", &["relay log drop --yes"]),
];

/// Commands without JSON output.
const WITHOUT_JSON: &[&str] = &["serve", "relay run", "relay check-config", "print"];

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/keys.txt");

fn paths(path: &str, value: &Value, found: &mut BTreeMap<String, Vec<&'static str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(values) => {
            values
                .iter()
                .for_each(|value| paths(&format!("{path}[]"), value, found));
            "array"
        }
        Value::Object(values) => {
            // These keys are data, or criteria that differ per operation.
            let is_map = [".headers", ".event_types", ".scope", ".consumers"]
                .iter()
                .any(|map| path.ends_with(map));
            for (key, value) in values {
                let key = if is_map { "*" } else { key };
                paths(&format!("{path}.{key}"), value, found);
            }
            "object"
        }
    };
    let kinds = found.entry(path.to_owned()).or_default();
    if !kinds.contains(&kind) {
        kinds.push(kind);
        kinds.sort_unstable();
    }
}

fn part(title: &str, answers: impl IntoIterator<Item = Value>) -> String {
    let mut found = BTreeMap::new();
    for answer in answers {
        paths("", &answer, &mut found);
    }
    let mut text = format!("# outbox {title}\n");
    for (path, kinds) in found {
        let path = if path.is_empty() { "." } else { &path };
        let _ = writeln!(text, "{path} {}", kinds.join(" or "));
    }
    text.push('\n');
    text
}

async fn of_log(planted: Planted) -> String {
    let place = &planted.place;
    // Slot names are shared by the server.
    let config = format!(
        "{}[outbox.log]\nname = \"{}\"\n",
        place.outbox("shop"),
        place.name
    );
    let file = place.folder.path().join("log.toml");
    std::fs::write(&file, config).unwrap();
    let servers = [("DATABASE_URL", &*place.url), ("NATS_URL", &*place.nats)];
    let answer = |command: &&str| {
        let words = command.split(' ');
        let more = ["-o", "json", "--config", file.to_str().unwrap()];
        run(&words.chain(more).collect::<Vec<_>>(), &servers).json()
    };
    let parts = OF_LOG.iter();
    let text = parts
        .map(|(title, commands)| part(title, commands.iter().map(answer)))
        .collect();
    planted.close().await;
    text
}

fn commands(of: &clap::Command, words: &str, found: &mut Vec<(String, bool)>) {
    let takes_yes = of.get_arguments().any(|argument| argument.get_id() == "yes");
    if !words.is_empty() && !of.is_subcommand_required_set() {
        found.push((words.to_owned(), takes_yes));
    }
    for below in of.get_subcommands() {
        commands(below, format!("{words} {}", below.get_name()).trim(), found);
    }
}

#[test]
fn each_command_has_its_keys_here() {
    let mut all = Vec::new();
    commands(&outbox_cli::Program::command(), "", &mut all);
    let has_json = |words: &str| !WITHOUT_JSON.iter().any(|other| words.starts_with(other));
    all.retain(|(words, _)| has_json(words));
    assert!(all.len() > 25, "{all:?}");
    let asked: Vec<&str> = COMMANDS
        .iter()
        .chain(OF_LOG)
        .flat_map(|(_, commands)| commands.iter().copied())
        .collect();
    let is_asked = |words: &str, with_yes: bool| {
        asked.iter().any(|command| {
            let is_it = command.strip_prefix(words);
            is_it.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                && command.ends_with(" --yes") == with_yes
        })
    };
    let mut missing = Vec::new();
    for (words, takes_yes) in all {
        if !is_asked(&words, false) {
            missing.push(words.clone());
        }
        if takes_yes && !is_asked(&words, true) {
            missing.push(format!("{words} --yes"));
        }
    }
    assert!(missing.is_empty(), "without keys in this test: {missing:?}");
}

#[tokio::test]
async fn the_keys_of_json_stay_as_they_are() {
    let (Some(planted), Some(logical)) = (
        Planted::open(Kind::Postgres).await,
        Planted::open(Kind::Logical).await,
    ) else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let (in_back_off, halting) = (planted.placed("1").await, planted.placed("2").await);
    let damaged = planted.delayed("3").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, in_back_off, failed()).await;
    planted.settle(&leases, halting, dead(true)).await;
    let due = planted.viewed("4").await;
    planted.corrupt("3").await;
    let letter = ask(place, "dead-letters list -o name").expect(0).out;
    let names = [
        ("{failed}", in_back_off.to_string()),
        ("{halting}", halting.to_string()),
        ("{damaged}", damaged.to_string()),
        ("{due}", due.to_string()),
        ("{letter}", letter.trim_end().to_owned()),
    ];
    let mut text = String::new();
    for (title, commands) in COMMANDS {
        let mut answers = Vec::new();
        for command in *commands {
            let operation = match command.contains("{operation}") {
                true => ask(place, "audit --kind retry -o name").expect(0).out,
                false => String::new(),
            };
            let names = [
                names.as_slice(),
                &[("{operation}", operation.trim_end().to_owned())],
            ]
            .concat();
            let name = |word| match names.iter().find(|(placeholder, _)| *placeholder == word) {
                Some((_, name)) => name.as_str(),
                None => word,
            };
            let mut words: Vec<&str> = command.split(' ').map(name).collect();
            if !words.contains(&"-o") {
                words.extend(["-o", "json"]);
            }
            answers.push(ask(place, &words).json());
        }
        text.push_str(&part(title, answers));
    }
    text.push_str(&of_log(logical).await);
    planted.close().await;
    if std::env::var_os("OUTBOX_BLESS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let expected = std::fs::read_to_string(FILE).unwrap_or_default();
    assert_eq!(
        text, expected,
        "the keys have changed; OUTBOX_BLESS=1 writes {FILE} anew"
    );
}

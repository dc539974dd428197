//! Rules of all commands: data on standard output, messages on standard error, exit codes.

use clap::CommandFactory as _;
use outbox::core::RelayHealth;
use outbox_cli::Program;
use serde_json::Value;

use super::answer::{Answer, ask, at};
use super::plant::{Planted, dead, failed};
use crate::place::{Kind, Place};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Prints {
    List,
    One,
}
use Prints::{List, One};

const COMMANDS: &[(&str, Prints, i32)] = &[
    ("status", List, 3),
    ("migrate", List, 0),
    ("doctor", List, 3),
    ("list", List, 0),
    ("list --status dead", List, 0),
    ("list --aggregate order/none", List, 5),
    ("show {halting}", One, 0),
    ("relay list", List, 0),
    ("timeline order/2", One, 0),
    ("timeline order/none", One, 5),
    ("why order/0", One, 3),
    ("why order/1", One, 3),
    ("why order/2", One, 4),
    ("why order/none", One, 5),
    ("consumers list", List, 0),
    ("consumers list --forecast=1s", List, 0),
    ("dead-letters list", List, 0),
    ("dead-letters list --consumer none", List, 5),
    ("dead-letters groups", List, 0),
    ("dead-letters groups --consumer none", List, 5),
    ("dead-letters retry --all", One, 0),
    ("dead-letters discard --consumer none", One, 5),
    ("dead-letters cancel-retry --consumer none", One, 5),
    ("retry --all", One, 0),
    ("retry --aggregate order/none", One, 5),
    ("retry --skip --all", One, 0),
    ("replay --all", One, 0),
    ("resume order/1", One, 0),
    ("resume order/none", One, 5),
    ("reconcile --since 1h --until 0s", One, 0),
    ("purge order/0", One, 0),
    ("consumers pause billing --reason trouble", One, 0),
    ("consumers resume billing", One, 5),
    ("prove --since 1h --until 0s", One, 3),
    ("prove --since 48h --until 47h", One, 5),
    ("audit", List, 5),
    ("pause", One, 0),
    ("pause --aggregate-type order --for 2h", One, 0),
    ("resume", One, 5),
];

const OTHERS: &[&str] = &["print", "relay log", "relay run", "serve"];

const FORMATS: [&str; 2] = ["table", "json"];

const REFUSED: &[(&str, i32)] = &[
    ("retry", 2),
    ("resume order/1 --aggregate-type order", 2),
    ("list --timeout 0s", 2),
    ("list --since yesterday", 2),
    ("consumers list --forecast=2h", 2),
    ("show not-an-id", 2),
    ("list --outbox other", 2),
    ("no-such-command", 2),
    ("show 00000000-0000-7000-8000-000000000000", 5),
    ("audit show 00000000-0000-7000-8000-000000000000", 5),
    ("audit show not-an-id", 2),
    ("prove", 2),
    ("prove --since 1h --until 2h", 2),
    ("resume --aggregate-type", 2),
    ("dead-letters show 00000000-0000-7000-8000-000000000000", 5),
];

fn lines(answer: &Answer) -> usize {
    answer.out.lines().count()
}

fn check(place: &Place, command: &str, prints: Prints, code: i32) {
    let answer = |format: &str| ask(place, &format!("{command} -o {format}"));
    let answers = FORMATS.map(|format| answer(format).expect(code));
    let [table, json] = &answers;
    let value = json.json();
    let count = match (&value, prints) {
        (Value::Array(things), List) => things.len(),
        (Value::Object(_), One) => 1,
        other => panic!("{command}: {other:?}"),
    };
    assert!(lines(table) >= count, "{command}: {table:?}");
    for answer in &answers {
        assert!(
            !answer.out.contains("re-run with `--yes`"),
            "{command}: {answer:?}"
        );
        assert!(
            code != 5 || prints == One || !answer.said.is_empty(),
            "{command}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn commands_print_each_format_and_set_exit_code() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let (in_back_off, halting) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, in_back_off, failed()).await;
    planted.settle(&leases, halting, dead(true)).await;
    for (command, prints, code) in COMMANDS {
        check(
            place,
            &command.replace("{halting}", &halting.to_string()),
            *prints,
            *code,
        );
    }
    for (command, code) in REFUSED {
        let answer = ask(place, *command).expect(*code);
        assert_eq!(answer.out, "", "{command}");
        assert!(!answer.said.is_empty(), "{command}");
    }
    let away = at(place, "nats://127.0.0.1:1", "consumers list -o json").expect(1);
    assert_eq!(away.out, "");
    planted.close().await;
}

#[test]
fn the_help_of_each_command_has_the_exit_codes() {
    fn check(command: &clap::Command, path: &str) -> usize {
        let subcommands: Vec<_> = command.get_subcommands().collect();
        if subcommands.is_empty() {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.starts_with("Exit codes: 0 done or healthy, 1 "),
                "{path}: {help}"
            );
            return 1;
        }
        let counts = subcommands
            .iter()
            .filter(|command| command.get_name() != "print")
            .map(|command| check(command, &format!("{path} {}", command.get_name())));
        counts.sum()
    }
    assert!(check(&Program::command(), "outbox") > 28);
}

#[test]
fn operations_table_has_every_command() {
    fn collect(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let subcommands: Vec<_> = command.get_subcommands().collect();
        let is_complete = !command.is_subcommand_required_set() || subcommands.is_empty();
        if is_complete && !path.is_empty() {
            found.push(path.to_owned());
        }
        for command in subcommands {
            let path = format!("{path} {}", command.get_name());
            collect(command, path.trim_start(), found);
        }
    }
    let mut all = Vec::new();
    collect(&Program::command(), "", &mut all);
    let commands = COMMANDS.iter().map(|(command, ..)| *command);
    let tables: Vec<&str> = commands
        .chain(REFUSED.iter().map(|(command, _)| *command))
        .collect();
    let starts = |line: &str, command: &str| line == command || line.starts_with(&format!("{command} "));
    all.retain(|command| {
        let is_other = OTHERS.iter().any(|other| starts(command, other));
        !is_other && !tables.iter().any(|line| starts(line, command))
    });
    assert!(all.is_empty(), "no table has {all:?}");
}

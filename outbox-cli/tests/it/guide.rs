//! The guide matches the program: configurations, commands, defaults and causes.

use clap::{Parser, ValueEnum as _};
use outbox_cli::admin::Cause;
use outbox_cli::admin::doctor::Check;
use outbox_cli::config::{Config, Environment, File};
use outbox_cli::{Outcome, Program};

const RELAY: &str = include_str!("../../../docs/guide/12-relay-program.md");
const COMMANDS: &str = include_str!("../../../docs/guide/14-command-line.md");
const DASHBOARD: &str = include_str!("../../../docs/guide/18-dashboard.md");
const PRODUCTION: &str = include_str!("../../../docs/guide/07-production.md");
const NIGHT: &str = include_str!("../../../docs/guide/16-night.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const TO_PRODUCTION: &str = include_str!("../../../docs/guide/17-to-production.md");

fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    let blocks = page.split(opening.as_str()).skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn configuration_examples_of_the_guide_load() {
    let servers = [
        ("DATABASE_URL", "postgres://db/shop"),
        ("NATS_URL", "nats://nats"),
    ];
    let environment: Environment = servers.into_iter().collect();
    for (page, count) in [(RELAY, 3), (COMMANDS, 2), (TO_PRODUCTION, 1)] {
        let blocks = blocks(page, "toml");
        assert_eq!(blocks.len(), count);
        for block in blocks {
            Config::new(File::parse("page", block).unwrap(), &environment).unwrap();
        }
    }
}

#[test]
fn commands_of_the_guide_exist() {
    for (page, expected) in [
        (RELAY, 5),
        (COMMANDS, 8),
        (DASHBOARD, 1),
        (PRODUCTION, 2),
        (OPERATIONS, 15),
        (TO_PRODUCTION, 16),
    ] {
        let lines = blocks(page, "sh").into_iter().flat_map(str::lines);
        let mut count = 0;
        for command in lines.filter(|line| line.starts_with("outbox ")) {
            let words = command
                .split_whitespace()
                .take_while(|word| !["#", ">"].contains(word))
                .map(|word| word.trim_matches('\''));
            Program::try_parse_from(words).unwrap();
            count += 1;
        }
        assert_eq!(count, expected);
    }
}

#[test]
fn night_page_uses_existing_commands() {
    for question in NIGHT.split("\n## ").skip(1) {
        let commands: Vec<&str> = question
            .lines()
            .filter_map(|line| line.strip_prefix("$ "))
            .collect();
        assert!(!commands.is_empty(), "{question}");
        for command in commands {
            Program::try_parse_from(command.split_whitespace()).unwrap();
        }
    }
}

#[test]
fn guide_has_the_default_address() {
    let address = File::default().http.address;
    assert!(RELAY.contains(&format!("by default {address}")));
}

#[test]
fn guide_lists_all_causes_checks_and_exit_codes() {
    for cause in Cause::value_variants() {
        assert!(COMMANDS.contains(&format!("| `{}` | ", cause)), "{cause:?}");
    }
    for check in Check::value_variants() {
        assert!(COMMANDS.contains(&format!("| `{}` | ", check)), "{check:?}");
    }
    for outcome in [
        Outcome::Done,
        Outcome::Degraded,
        Outcome::Stuck,
        Outcome::NothingMatched,
    ] {
        assert!(
            COMMANDS.contains(&format!("| {} | ", outcome.code())),
            "{outcome:?}"
        );
    }
}

//! The page of the guide agrees with the program: its files are configurations, its commands exist, and what it says of defaults is so.

use clap::Parser;
use outbox_cli::OutboxCommand;
use outbox_cli::config::{Config, Environment, File};

const PAGE: &str = include_str!("../../../docs/guide/12-relay-program.md");

#[derive(Debug, Parser)]
struct Program {
    #[command(subcommand)]
    _command: OutboxCommand,
}

/// The fenced blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    let blocks = PAGE.split(opening.as_str()).skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn its_files_are_configurations() {
    let blocks = blocks("toml");
    assert_eq!(blocks.len(), 3);
    let servers = [
        ("DATABASE_URL", "postgres://db/shop"),
        ("NATS_URL", "nats://nats"),
    ];
    let environment: Environment = servers.into_iter().collect();
    for block in blocks {
        Config::new(File::parse("page", block).unwrap(), &environment).unwrap();
    }
}

#[test]
fn its_commands_exist() {
    let lines = blocks("sh").into_iter().flat_map(str::lines);
    let commands = lines.filter(|line| line.starts_with("outbox "));
    let mut count = 0;
    for command in commands {
        let words = command
            .split_whitespace()
            .take_while(|word| !["#", ">"].contains(word));
        Program::try_parse_from(words).unwrap();
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn its_default_address_is_that_of_the_program() {
    let address = File::default().http.address;
    assert!(PAGE.contains(&format!("by default {address}")));
}

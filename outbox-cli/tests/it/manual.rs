//! What the program prints of itself: completions, and its manual.

use std::process::{Command, Output};

use clap::Parser as _;
use outbox_cli::Program;

fn outbox(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_outbox");
    Command::new(program).args(words).env_clear().output().unwrap()
}

fn text(words: &[&str]) -> String {
    let output = outbox(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_shell_completes_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&["completions", shell]);
        for word in ["status", "dead-letters", "reconcile", "consumers-remember"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn each_command_has_a_page() {
    let program = text(&["man"]);
    assert!(
        program.starts_with(".ie") && program.contains(".SH SUBCOMMANDS"),
        "{program}"
    );
    let page = text(&["man", "dead-letters", "retry"]);
    assert!(
        page.contains("outbox\\-dead\\-letters\\-retry") && page.contains("\\-\\-yes"),
        "{page}"
    );
    let unknown = outbox(&["man", "dead-letters", "eat"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

#[test]
fn the_other_name_of_first_is_known_to_commands_shells_and_manual() {
    for command in [
        "retry",
        "skip",
        "replay",
        "purge",
        "dead-letters retry",
        "dead-letters cancel-retry",
        "dead-letters discard",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let page = text(&[&["man"], &words[..]].concat());
        assert!(page.contains("\\-\\-sample"), "{command}: {page}");
        let given = [&["outbox"], &words[..], &["--sample", "1"]].concat();
        Program::try_parse_from(&given).unwrap();
        let twice = [&given[..], &["--first", "1"]].concat();
        Program::try_parse_from(twice).unwrap_err();
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(text(&["completions", shell]).contains("sample"), "{shell}");
    }
}

/// `outbox man | head -1` is no failure, as that of a list is none.
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for words in [
        &["completions", "bash"][..],
        &["man"],
        &["print", "alerts"],
        &["print", "config"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.args(words).env_clear().stdout(writer);
        let output = command.output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{words:?}: {output:?}"
        );
    }
}

#[test]
fn alerts_and_board_are_those_that_are_tested() {
    let alerts = include_str!("../../../docs/monitoring/alerts.yml");
    let board = include_str!("../../../docs/monitoring/grafana.json");
    assert_eq!(text(&["print", "alerts"]), alerts);
    assert_eq!(text(&["print", "grafana"]), board);
}

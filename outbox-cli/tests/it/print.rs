//! The files that `outbox print` prints.

use std::process::{Command, Output};

fn outbox(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_outbox");
    Command::new(program).args(words).env_clear().output().unwrap()
}

fn text(words: &[&str]) -> String {
    let output = outbox(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `outbox print alerts | head -1` is no failure.
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for words in [&["print", "alerts"][..], &["print", "config"]] {
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

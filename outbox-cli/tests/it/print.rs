//! Files of `outbox print`.

use std::process::Command;

use crate::operate::answer::run;

#[test]
fn closed_output_pipe_is_no_failure() {
    for what in ["alerts", "config"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.args(["print", what]).env_clear().stdout(writer);
        let output = command.output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{what}: {output:?}"
        );
    }
}

#[test]
fn printed_alerts_and_board_are_the_tested_files() {
    let alerts = include_str!("../../monitoring/alerts.yml");
    let board = include_str!("../../monitoring/grafana.json");
    assert_eq!(run("print alerts", &[]).expect(0).out, alerts);
    assert_eq!(run("print grafana", &[]).expect(0).out, board);
}

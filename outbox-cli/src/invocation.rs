//! How this process was called: the words before the commands, and the options that chose an outbox.
//! Commands that answers name are completed with both, so that people can copy them.
//!
//! Invariant: only what the command line gave is added, and only to commands that take it. The next
//! command finds the environment as it is.

use std::path::Path;
use std::sync::OnceLock;

use clap::Command as Arguments;
use outbox_admin::{Command, Next, quoted};

/// An option of the command line and its value.
type Given = (&'static str, String);

/// The options that this process was given. A command that looks at further outboxes remembers them
/// too, so the first call counts.
static GIVEN: OnceLock<Vec<Given>> = OnceLock::new();

const NAME: &str = "outbox";

/// The commands that can be named, and the words by which the program is called.
#[derive(Debug)]
struct Program {
    commands: Arguments,
    name: String,
}

/// The program that runs. Commands stay as they are if it is not known.
static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Keeps the commands of the program `outbox`.
pub(crate) fn know(commands: Arguments) {
    let name = NAME.to_owned();
    PROGRAM.get_or_init(|| Program { commands, name });
}

/// Keeps the commands of a program that mounts them, unless it is the program `outbox`.
pub(crate) fn know_mounted(commands: impl FnOnce() -> Arguments) {
    if PROGRAM.get().is_some() {
        return;
    }
    let commands = commands();
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(name) = called(&words, &commands) {
        PROGRAM.get_or_init(|| Program { commands, name });
    }
}

/// The words of a command line that stand before one of the commands: `shop outbox`. Whatever follows has to be that command, because a word before it may be
/// the value of an option.
fn called(words: &[String], commands: &Arguments) -> Option<String> {
    let is_command = |at: &usize| {
        let command = words[*at..].iter().map(String::as_str);
        let line = std::iter::once(NAME).chain(command);
        commands.clone().try_get_matches_from(line).is_ok()
    };
    let at = (1..words.len()).find(is_command)?;
    // An option before it may have a secret as its value, which is not repeated.
    let is_plain = |word: &String| {
        let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'-' || byte == b'_';
        word.bytes().all(is_of_name) && !word.starts_with('-')
    };
    if !words[1..at].iter().all(is_plain) {
        return None;
    }
    let program = quoted(&words[0]);
    Some(
        words[1..at]
            .iter()
            .fold(program, |name, word| format!("{name} {word}")),
    )
}

/// The words by which the program is called; `outbox` if they are not known.
pub(crate) fn name() -> &'static str {
    PROGRAM.get().map_or(NAME, |program| program.name.as_str())
}

/// Keeps what the command line has chosen.
pub(crate) fn remember(config: Option<&Path>, outbox: Option<&str>) {
    let config = config.map(|path| path.to_string_lossy().into_owned());
    let options = [("--config", config), ("--outbox", outbox.map(str::to_owned))];
    let given = options
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)));
    GIVEN.get_or_init(|| given.collect());
}

/// A command as it can be copied: with the words by which the program was called, and with the options that have chosen the outbox.
pub(crate) fn command(command: &Command) -> String {
    let given = GIVEN.get().map(Vec::as_slice).unwrap_or_default();
    match PROGRAM.get() {
        Some(Program { commands, name }) => completed(command, given, commands).called_as(name),
        None => command.to_string(),
    }
}

/// Adds `--outbox` to a command about one of several outboxes.
pub(crate) fn name_outbox(next: &mut Next, outbox: &str) {
    let given = [("--outbox", outbox.to_owned())];
    if let (Some(command), Some(Program { commands, .. })) = (&mut next.command, PROGRAM.get()) {
        *command = completed(command, &given, commands);
    }
}

/// A command with the options that it takes and does not have.
fn completed(command: &Command, given: &[Given], commands: &Arguments) -> Command {
    let is_missing = |(option, _): &&Given| {
        takes(command, option, commands) && command.arguments().iter().all(|(name, _)| *name != Some(*option))
    };
    let missing = given.iter().filter(is_missing);
    missing.fold(command.clone(), |command, (option, value)| {
        command.option(option, value)
    })
}

/// Whether the command has the option.
fn takes(command: &Command, option: &str, commands: &Arguments) -> bool {
    let words = command.words_of_outbox().into_iter().flatten();
    let found = words
        .scan(commands, |found, word| {
            *found = found.find_subcommand(word)?;
            Some(*found)
        })
        .last();
    let options = found.into_iter().flat_map(Arguments::get_arguments);
    options
        .filter_map(clap::Arg::get_long)
        .any(|long| option.strip_prefix("--") == Some(long))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Arguments {
        let option = |name: &'static str| clap::Arg::new(name).long(name);
        let placed = |name: &'static str| Arguments::new(name).args([option("config"), option("outbox")]);
        Arguments::new("outbox")
            .subcommands([placed("status"), placed("why"), placed("migrate")])
            .subcommand(Arguments::new("log").subcommand(placed("drop")))
            .subcommand(Arguments::new("relay").subcommand(Arguments::new("run").arg(option("config"))))
            .subcommand(Arguments::new("print").subcommand(Arguments::new("grants").arg(option("user"))))
    }

    #[test]
    fn a_command_gets_the_options_that_it_takes() {
        let given = [
            ("--config", "my shop.toml".to_owned()),
            ("--outbox", "shop".to_owned()),
        ];
        for (command, expected) in [
            (
                Command::from("outbox why").arg("order/a: outbox status"),
                "shop outbox why 'order/a: outbox status' --config 'my shop.toml' --outbox shop",
            ),
            (
                "outbox relay run".into(),
                "shop outbox relay run --config 'my shop.toml'",
            ),
            (
                Command::from("outbox log drop --yes").option("--outbox", "other"),
                "shop outbox log drop --yes --outbox other --config 'my shop.toml'",
            ),
            (
                Command::from("outbox print grants").option("--user", "relay"),
                "shop outbox print grants --user relay",
            ),
            ("nats stream info status".into(), "nats stream info status"),
        ] {
            let completed = completed(&command, &given, &commands());
            assert_eq!(completed.called_as("shop outbox"), expected);
        }
    }

    #[test]
    fn a_program_that_mounts_the_commands_is_called_by_the_words_before_them() {
        for (line, name) in [
            ("./shop outbox status --config a.toml", Some("./shop outbox")),
            ("shop status", Some("shop")),
            ("shop --token outbox outbox log drop", None),
            ("shop postgres://u:p@db/shop outbox log drop", None),
            ("shop outbox nothing", None),
            ("shop", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(called(&words, &commands()).as_deref(), name, "{line}");
        }
    }
}

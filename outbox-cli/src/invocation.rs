//! How this process was called. Suggested commands repeat the outbox options of the call, ready to
//! copy.
//!
//! Invariant: only options from the command line are added, and only to commands that accept
//! them.

use std::path::Path;
use std::sync::OnceLock;

use crate::admin::{Command, Next};
use clap::Command as Arguments;

type Given = (&'static str, String);

/// Options `--config` and `--outbox` of the running command. Only the first call of `remember` sets
/// them.
static GIVEN: OnceLock<Vec<Given>> = OnceLock::new();

/// Clap's definition of all commands, which lists the options of each command. If unset, suggested
/// commands stay unchanged.
static COMMANDS: OnceLock<Arguments> = OnceLock::new();

pub(crate) fn know(commands: impl FnOnce() -> Arguments) {
    COMMANDS.get_or_init(commands);
}

pub(crate) fn remember(config: Option<&Path>, outbox: Option<&str>) {
    let config = config.map(|path| path.to_string_lossy().into_owned());
    let options = [("--config", config), ("--outbox", outbox.map(str::to_owned))];
    let given = options
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)));
    GIVEN.get_or_init(|| given.collect());
}

pub(crate) fn command(command: &Command) -> String {
    let given = GIVEN.get().map(Vec::as_slice).unwrap_or_default();
    match COMMANDS.get() {
        Some(commands) => completed(command, given, commands).to_string(),
        None => command.to_string(),
    }
}

pub(crate) fn name_outbox(next: &mut Next, outbox: &str) {
    let given = [("--outbox", outbox.to_owned())];
    if let (Some(command), Some(commands)) = (&mut next.command, COMMANDS.get()) {
        *command = completed(command, &given, commands);
    }
}

fn completed(command: &Command, given: &[Given], commands: &Arguments) -> Command {
    let is_missing = |(option, _): &&Given| {
        takes(command, option, commands) && command.arguments().iter().all(|(name, _)| *name != Some(*option))
    };
    let missing = given.iter().filter(is_missing);
    missing.fold(command.clone(), |command, (option, value)| {
        command.option(option, value)
    })
}

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
    fn command_gets_only_accepted_options() {
        let given = [
            ("--config", "my shop.toml".to_owned()),
            ("--outbox", "shop".to_owned()),
        ];
        for (command, expected) in [
            (
                Command::from("outbox why").arg("order/a: outbox status"),
                "outbox why 'order/a: outbox status' --config 'my shop.toml' --outbox shop",
            ),
            (
                "outbox relay run".into(),
                "outbox relay run --config 'my shop.toml'",
            ),
            (
                Command::from("outbox log drop --yes").option("--outbox", "other"),
                "outbox log drop --yes --outbox other --config 'my shop.toml'",
            ),
            (
                Command::from("outbox print grants").option("--user", "relay"),
                "outbox print grants --user relay",
            ),
            ("nats stream info status".into(), "nats stream info status"),
        ] {
            let completed = completed(&command, &given, &commands());
            assert_eq!(completed.to_string(), expected);
        }
    }
}

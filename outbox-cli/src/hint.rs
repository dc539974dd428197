//! Commands that are named to people, with the options by which they have chosen an outbox: what is said can be copied as it stands.
//!
//! Invariants: only what the command line gave is added, and only to commands that take it; what the environment gave is there for the next command too.
//! A command stands at the beginning of a text, behind a colon or a backtick, or as the second of two; other texts are left as they are. Not in JSON: its
//! readers know what they have asked. Only the name of an outbox stands there too, where an answer is about several.

use std::path::Path;
use std::sync::OnceLock;

use clap::Command;
use outbox_admin::quoted;

/// An option of the command line, such as `config`, and its value in quotes.
type Given = (&'static str, String);

/// What this process was given. A command that looks at further outboxes names them to itself only, so the first word counts.
static GIVEN: OnceLock<Vec<Given>> = OnceLock::new();

/// The command line of the program. Another one that mounts its commands calls them otherwise, so nothing is completed there.
static PROGRAM: OnceLock<Command> = OnceLock::new();

/// Keeps the commands that can be named.
pub(crate) fn know(program: Command) {
    PROGRAM.get_or_init(|| program);
}

/// Keeps what the command line has chosen.
pub(crate) fn remember(config: Option<&Path>, context: Option<&str>, outbox: Option<&str>) {
    let config = config.map(|path| path.to_string_lossy().into_owned());
    let options = [
        ("config", config),
        ("context", context.map(str::to_owned)),
        ("outbox", outbox.map(str::to_owned)),
    ];
    let given = options.into_iter().filter_map(|(option, value)| {
        let value = value?;
        Some((option, quoted(&value)))
    });
    GIVEN.get_or_init(|| given.collect());
}

/// A text with its commands completed.
pub(crate) fn complete(text: &str) -> String {
    match (GIVEN.get(), PROGRAM.get()) {
        (Some(given), Some(program)) if !given.is_empty() => with_options(text, given, program),
        _ => text.to_owned(),
    }
}

/// A text about one of several outboxes, whose commands have to name it.
pub(crate) fn of_outbox(text: &str, outbox: &str) -> String {
    match PROGRAM.get() {
        Some(program) => with_options(text, &[("outbox", quoted(outbox))], program),
        None => text.to_owned(),
    }
}

/// Lines of an answer, in which only what stands behind `next: ` is a command: the others may hold texts of somebody else.
pub(crate) fn complete_lines(text: &str) -> String {
    const NEXT: &str = "next: ";
    let lines = text.split_inclusive('\n').map(|line| {
        let at = line.find(NEXT).map(|at| at + NEXT.len());
        match at.map(|at| line.split_at(at)) {
            Some((before, command)) if is_hint(before) => format!("{before}{}", complete(command)),
            _ => line.to_owned(),
        }
    });
    lines.collect()
}

/// Whether it begins a line, or ends a sentence.
fn is_hint(before: &str) -> bool {
    let before = before.trim_end_matches("next: ");
    before.trim().is_empty() || before.ends_with("; ")
}

fn with_options(text: &str, given: &[Given], program: &Command) -> String {
    const NAME: &str = "outbox";
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(NAME) {
        done.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_behind = |words: &&str| done.ends_with(*words);
        let begins = done.is_empty() || ["`", "\n", ": ", "; or ", " then "].iter().any(is_behind);
        let Some((length, command)) = begins.then(|| command_in(rest, program)).flatten() else {
            done.push_str(NAME);
            rest = &rest[NAME.len()..];
            continue;
        };
        let (words, after) = rest.split_at(length);
        done.push_str(words);
        let end = after.find(['`', '\n']).unwrap_or(after.len());
        let takes = |option: &str| {
            let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
            options.any(|long| long == option) && !after[..end].contains(&format!(" --{option}"))
        };
        for (option, value) in given.iter().filter(|(option, _)| takes(option)) {
            done.push_str(&format!(" --{option} {value}"));
        }
        rest = after;
    }
    done + rest
}

/// The command with which a text begins, and the length of its words: `outbox relay run`.
fn command_in<'a>(text: &str, program: &'a Command) -> Option<(usize, &'a Command)> {
    let (mut length, mut command) = ("outbox".len(), program);
    while let Some(after) = text[length..].strip_prefix(' ') {
        let is_end = |character: char| !character.is_ascii_alphanumeric() && character != '-';
        let word = after.split(is_end).next().unwrap_or_default();
        let Some(found) = command.find_subcommand(word) else {
            break;
        };
        command = found;
        length += 1 + word.len();
    }
    (!command.has_subcommands()).then_some((length, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> String {
        let given = [("config", quoted("my shop.toml")), ("outbox", quoted("shop"))];
        let option = |name: &'static str| clap::Arg::new(name).long(name);
        let placed = |name: &'static str| Command::new(name).args([option("config"), option("outbox")]);
        let program = Command::new("outbox")
            .subcommands([placed("status"), placed("why"), placed("migrate")])
            .subcommand(Command::new("log").subcommand(placed("drop")))
            .subcommand(Command::new("dead-letters").subcommand(placed("list")))
            .subcommand(Command::new("relay").subcommand(Command::new("run").arg(option("config"))))
            .subcommand(Command::new("print").subcommand(Command::new("grants").arg(option("user"))));
        with_options(text, &given, &program)
    }

    #[test]
    fn a_command_gets_the_options_that_it_takes() {
        for (text, expected) in [
            (
                "outbox why order/1",
                "outbox why --config 'my shop.toml' --outbox shop order/1",
            ),
            (
                "next: outbox relay run, with `log.read = true`; or outbox log drop",
                "next: outbox relay run --config 'my shop.toml', with `log.read = true`; or outbox log drop --config 'my shop.toml' --outbox shop",
            ),
            (
                "run `outbox migrate --yes --outbox other`, \noutbox status\n",
                "run `outbox migrate --config 'my shop.toml' --yes --outbox other`, \noutbox status --config 'my shop.toml' --outbox shop\n",
            ),
        ] {
            assert_eq!(completed(text), expected);
        }
    }

    #[test]
    fn what_is_no_command_is_left_as_it_is() {
        for text in [
            "outbox `shop`: it failed",
            "error: outbox: no such thing",
            "the outbox status is unknown",
            "`outbox dead-letters` decides",
            "next: outbox print grants --database postgres --role viewer --user relay",
            "table outbox_messages",
            "outbox",
        ] {
            assert_eq!(completed(text), text);
        }
    }

    #[test]
    fn only_what_stands_behind_next_is_a_command_of_a_line() {
        for (before, is_command) in [
            ("  next: ", true),
            ("it is paused; next: ", true),
            ("the payload says next: ", false),
        ] {
            assert_eq!(is_hint(before), is_command, "{before}");
        }
    }
}

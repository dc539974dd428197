//! Commands that are named to people, by the words with which the program was called, and with the options by which they have chosen an outbox: what is said can
//! be copied as it stands.
//!
//! Invariants: only what the command line gave is added, and only to commands that take it; what the environment gave is there for the next command too.
//! Answers hold their commands as values ([`Command`]). In the text of an error a command stands at the beginning, behind a colon or a backtick, or as the second of two;
//! other texts are left as they are. In JSON no options are
//! added: its readers know what they have asked. Only the name of an outbox stands there too, where an answer is about several.

use std::path::Path;
use std::sync::OnceLock;

use clap::Command as Arguments;
use outbox_admin::{Command, Next, quoted};

use crate::output::plain;

/// An option of the command line, such as `config`, and its value in quotes.
type Given = (&'static str, String);

/// What this process was given. A command that looks at further outboxes names them to itself only, so the first word counts.
static GIVEN: OnceLock<Vec<Given>> = OnceLock::new();

/// What commands are called here.
const NAME: &str = "outbox";

/// The commands that can be named, and the words by which the program is called.
#[derive(Debug)]
struct Program {
    commands: Arguments,
    name: String,
}

/// The program that runs. If nobody knows how it was called, nothing is completed.
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

/// The words by which the program is called; `outbox`, if nobody knows how it was.
pub(crate) fn name() -> &'static str {
    PROGRAM.get().map_or(NAME, |program| program.name.as_str())
}

/// Keeps what the command line has chosen.
pub(crate) fn remember(config: Option<&Path>, outbox: Option<&str>) {
    let config = config.map(|path| path.to_string_lossy().into_owned());
    let options = [("config", config), ("outbox", outbox.map(str::to_owned))];
    let given = options.into_iter().filter_map(|(option, value)| {
        let value = value?;
        Some((option, quoted(&value)))
    });
    GIVEN.get_or_init(|| given.collect());
}

/// A text with its commands completed.
pub(crate) fn complete(text: &str) -> String {
    let given = GIVEN.get().map(Vec::as_slice).unwrap_or_default();
    match PROGRAM.get() {
        Some(Program { commands, name }) => completed(text, given, commands, name),
        None => text.to_owned(),
    }
}

/// A command as it can be copied: with the words by which the program was called, and with the options that have chosen the outbox.
pub(crate) fn command(command: &Command) -> String {
    let given = GIVEN.get().map(Vec::as_slice).unwrap_or_default();
    match PROGRAM.get() {
        Some(Program { commands, name }) => completed_command(command, given, commands, name),
        None => command.to_string(),
    }
}

/// A command as the program was called, without further options.
pub(crate) fn called_here(command: &Command) -> String {
    command.called_as(name())
}

/// The next step, in lines with this margin. Arguments may come from a row, so their control characters are escaped.
pub(crate) fn lines(next: &Next, margin: &str) -> String {
    let mut text = String::new();
    if let Some(command) = &next.command {
        text.push_str(&line(command, margin));
    }
    if let Some(advice) = &next.advice {
        text.push_str(&self::advice(advice, margin));
    }
    text
}

/// The line of an advice.
pub(crate) fn advice(advice: &str, margin: &str) -> String {
    format!("{margin}advice: {}\n", complete(&plain(advice)))
}

/// The line of a command.
pub(crate) fn line(command: &Command, margin: &str) -> String {
    format!("{margin}next: {}\n", plain(&self::command(command)))
}

/// Adds `--outbox` to a command about one of several outboxes. The name of the program is added when the command is printed.
pub(crate) fn name_outbox(next: &mut Next, outbox: &str) {
    let given = [("outbox", quoted(outbox))];
    if let (Some(command), Some(Program { commands, .. })) = (&mut next.command, PROGRAM.get()) {
        *command = completed_command(command, &given, commands, NAME).into();
    }
}

/// JSON in which the texts below the keys `next` are called as the program was.
pub(crate) fn called_here_in_json(json: String) -> String {
    match PROGRAM.get() {
        Some(program) if program.name != NAME => in_json(&json, |text| match text.starts_with("outbox ") {
            true => called_here(&text.into()),
            false => text.to_owned(),
        }),
        _ => json,
    }
}

/// JSON with other texts below the keys `next`. The order of the keys stays.
fn in_json(json: &str, change: impl Fn(&str) -> String) -> String {
    let (mut done, mut rest, mut is_next) = (String::with_capacity(json.len()), json, false);
    while let Some(at) = rest.find('"') {
        let (before, text) = rest.split_at(at);
        let (text, after) = text.split_at(length(text));
        done.push_str(before);
        let is_key = after.starts_with(':');
        if is_key {
            is_next = text == "\"next\"";
        }
        let changed = (is_next && !is_key)
            .then(|| serde_json::from_str::<String>(text).ok())
            .flatten()
            .and_then(|text| serde_json::to_string(&change(&text)).ok());
        done.push_str(changed.as_deref().unwrap_or(text));
        rest = after;
    }
    done + rest
}

/// The length of the string with which JSON begins, with its quotes.
fn length(json: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        if byte == b'"' && !is_escaped {
            return at + 1;
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    json.len()
}

/// A command with the options that it takes. Its arguments may name commands, as part of an id:
/// these stay as they are.
fn completed_command(command: &Command, given: &[Given], commands: &Arguments, name: &str) -> String {
    let line = command.as_str();
    if !line.starts_with("outbox ") {
        return line.to_owned();
    }
    let Some((length, found)) = command_in(line, commands) else {
        return command.called_as(name);
    };
    let (words, arguments) = line.split_at(length);
    format!(
        "{name}{}{}{arguments}",
        &words[NAME.len()..],
        options(found, &unquoted(arguments), given)
    )
}

/// A command line without its quoted parts.
fn unquoted(line: &str) -> String {
    line.split('\'').step_by(2).collect()
}

/// The given options that a command takes and does not have among its arguments.
fn options(command: &Arguments, arguments: &str, given: &[Given]) -> String {
    let takes = |option: &str| {
        let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
        options.any(|long| long == option) && !arguments.contains(&format!(" --{option}"))
    };
    let taken = given.iter().filter(|(option, _)| takes(option));
    taken
        .map(|(option, value)| format!(" --{option} {value}"))
        .collect()
}

fn completed(text: &str, given: &[Given], commands: &Arguments, name: &str) -> String {
    let (mut done, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(NAME) {
        done.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_behind = |words: &&str| done.ends_with(*words);
        let begins = done.is_empty() || ["`", "\n", ": ", "; or ", " then "].iter().any(is_behind);
        let Some((length, command)) = begins.then(|| command_in(rest, commands)).flatten() else {
            done.push_str(NAME);
            rest = &rest[NAME.len()..];
            continue;
        };
        let (words, after) = rest.split_at(length);
        done.push_str(name);
        done.push_str(&words[NAME.len()..]);
        let end = after.find(['`', '\n']).unwrap_or(after.len());
        done.push_str(&options(command, &after[..end], given));
        rest = after;
    }
    done + rest
}

/// The command with which a text begins, and the length of its words: `outbox relay run`.
fn command_in<'a>(text: &str, program: &'a Arguments) -> Option<(usize, &'a Arguments)> {
    let (mut length, mut command) = (NAME.len(), program);
    while let Some(after) = text[length..].strip_prefix(' ') {
        let is_end = |character: char| !character.is_ascii_alphanumeric() && character != '-';
        let word = after.split(is_end).next().unwrap_or_default();
        let Some(found) = command.find_subcommand(word) else {
            break;
        };
        command = found;
        length += 1 + word.len();
    }
    (length > NAME.len()).then_some((length, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Arguments {
        let option = |name: &'static str| clap::Arg::new(name).long(name);
        let placed = |name: &'static str| Arguments::new(name).args([option("config"), option("outbox")]);
        Arguments::new("outbox")
            .subcommands([placed("status"), placed("why"), placed("migrate")])
            .subcommand(Arguments::new("dead-letters").subcommand(placed("list")))
            .subcommand(
                Arguments::new("relay")
                    .subcommand(Arguments::new("run").arg(option("config")))
                    .subcommand(Arguments::new("log").subcommand(placed("drop"))),
            )
            .subcommand(Arguments::new("print").subcommand(Arguments::new("grants").arg(option("user"))))
    }

    fn completed(text: &str) -> String {
        let given = [("config", quoted("my shop.toml")), ("outbox", quoted("shop"))];
        super::completed(text, &given, &commands(), NAME)
    }

    #[test]
    fn a_command_gets_the_options_that_it_takes() {
        for (text, expected) in [
            (
                "outbox why order/1",
                "outbox why --config 'my shop.toml' --outbox shop order/1",
            ),
            (
                "next: outbox relay run, with `log.read = true`; or outbox relay log drop",
                "next: outbox relay run --config 'my shop.toml', with `log.read = true`; or outbox relay log drop --config 'my shop.toml' --outbox shop",
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
    fn arguments_of_a_command_stay_as_they_are() {
        let given = [("config", "x".to_owned())];
        let commands = commands();
        let completed = |line: &str, name| completed_command(&line.into(), &given, &commands, name);
        assert_eq!(
            completed("outbox why 'order/a: outbox status --config y'", NAME),
            "outbox why --config x 'order/a: outbox status --config y'"
        );
        assert_eq!(
            completed("outbox why 'order/`outbox status`'", "shop outbox"),
            "shop outbox why --config x 'order/`outbox status`'"
        );
        for line in [
            "outbox why --config y order/1",
            "nats stream info 'a: outbox status'",
        ] {
            assert_eq!(completed(line, NAME), line);
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
    fn a_program_that_mounts_the_commands_is_called_by_the_words_before_them() {
        for (line, name) in [
            ("./shop outbox status --config a.toml", Some("./shop outbox")),
            ("shop status", Some("shop")),
            ("shop --token outbox outbox relay log drop", None),
            ("shop postgres://u:p@db/shop outbox relay log drop", None),
            ("shop outbox nothing", None),
            ("shop", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(called(&words, &commands()).as_deref(), name, "{line}");
        }
        let given = [("config", "a.toml".to_owned())];
        let completed = |text| super::completed(text, &given, &commands(), "shop outbox");
        assert_eq!(
            completed("next: outbox why order/1; or outbox relay log drop"),
            "next: shop outbox why --config a.toml order/1; or shop outbox relay log drop --config a.toml"
        );
        assert_eq!(
            completed("`outbox dead-letters` decides"),
            "`shop outbox dead-letters` decides"
        );
        for text in [
            "outbox `shop`: it failed",
            "table outbox_messages",
            "shop outbox why",
        ] {
            assert_eq!(completed(text), text);
        }
    }

    #[test]
    fn commands_of_json_stand_below_the_key_next() {
        let json = r#"[{"what": "outbox why", "next": ["outbox why \"a\\", "nats"], "id": "outbox why"}, {"next": null, "a": "next"}]"#;
        let changed = in_json(json, |text| text.replace("outbox", "shop \"o\""));
        assert_eq!(
            changed,
            json.replacen("\"outbox why \\", "\"shop \\\"o\\\" why \\", 1)
        );
    }
}

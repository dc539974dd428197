//! What the commands are called that answers name, in a program that mounts them.
//!
//! Invariant: only commands of the program `outbox` are called otherwise. One stands at the beginning of a text, on a line of its own, behind a colon or a backtick, or as
//! the second of two; other texts are left as they are.

/// What commands are called in answers.
const NAME: &str = "outbox";

/// What stands before a command in the middle of a text.
const BEFORE: [&str; 5] = ["`", "\n", ": ", "; or ", " then "];

/// The first words of the commands.
const COMMANDS: [&str; 30] = [
    "audit",
    "blocked",
    "consumers",
    "contexts",
    "dead-letters",
    "doctor",
    "forget",
    "list",
    "log",
    "migrate",
    "partitions",
    "pause",
    "print",
    "prove",
    "purge",
    "reconcile",
    "relay",
    "relays",
    "replay",
    "resume",
    "retry",
    "serve",
    "show",
    "skip",
    "status",
    "tail",
    "timeline",
    "top",
    "unpause",
    "why",
];

/// A text of an answer, whose commands are called as they are in a program that mounts them: `shop outbox why order/4711`, where the answer says `outbox why order/4711`.
///
/// ```
/// let next = outbox_admin::called_as("outbox why order/4711", "shop outbox");
/// assert_eq!(next, "shop outbox why order/4711");
/// ```
#[must_use]
pub fn called_as(text: &str, program: &str) -> String {
    let (mut called, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(NAME) {
        called.push_str(&rest[..at]);
        rest = &rest[at + NAME.len()..];
        let begins = called.is_empty() || BEFORE.iter().any(|before| called.ends_with(*before));
        called.push_str(if begins && is_command(rest) { program } else { NAME });
    }
    called.push_str(rest);
    called
}

/// Whether a text goes on with the words of a command.
fn is_command(text: &str) -> bool {
    let is_end = |character: char| !character.is_ascii_alphanumeric() && character != '-';
    let words = text.strip_prefix(' ').map(|words| words.split(is_end));
    let word = words.and_then(|mut words| words.next());
    word.is_some_and(|word| COMMANDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_called_as_the_program_is() {
        for (text, expected) in [
            ("outbox why order/1", "shop outbox why order/1"),
            (
                "outbox relay run, with `log.read = true`; or outbox log drop",
                "shop outbox relay run, with `log.read = true`; or shop outbox log drop",
            ),
            (
                "remove the cause, then `outbox retry 1`, or `outbox skip 1`",
                "remove the cause, then `shop outbox retry 1`, or `shop outbox skip 1`",
            ),
            (
                "make the table: outbox migrate --yes",
                "make the table: shop outbox migrate --yes",
            ),
        ] {
            assert_eq!(called_as(text, "shop outbox"), expected);
            assert_eq!(called_as(text, "outbox"), text);
        }
    }

    #[test]
    fn what_is_no_command_is_left_as_it_is() {
        for text in [
            "outbox `shop`: it failed",
            "error: outbox: no such thing",
            "the outbox status is unknown",
            "table outbox_messages",
            "nats stream edit outbox",
            "outbox",
            "",
        ] {
            assert_eq!(called_as(text, "shop"), text);
        }
    }
}

//! The rules for names that are stored or sent. A wrong name would otherwise fail later, in a
//! subject, a filter or a primary key.

/// Maximum bytes of aggregate, event and consumer names.
const NAME_BYTES_MAX: usize = 64;
/// Maximum bytes of a fixed subject.
const SUBJECT_BYTES_MAX: usize = 255;

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) wrong: String,
    pub(crate) fix: String,
}

fn fault(wrong: impl Into<String>, fix: impl Into<String>) -> Result<(), Fault> {
    Err(Fault {
        wrong: wrong.into(),
        fix: fix.into(),
    })
}

/// Checks a name against `[a-z][a-z0-9_-]*`, at most 64 bytes.
pub(crate) fn event_name(key: &str, text: &str) -> Result<(), Fault> {
    if text.contains('.') {
        return fault(
            format!("`{key}` contains a dot, and dots separate the tokens of a subject"),
            write_instead(key, text),
        );
    }
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let rule = "is a lower-case letter followed by `a-z`, `0-9`, `-` and `_`";
    let starts = text.starts_with(|first: char| first.is_ascii_lowercase());
    name(key, text, starts && text.bytes().all(is_legal), rule)
}

/// Checks a consumer name against `[A-Za-z0-9_-]{1,64}`.
pub(crate) fn consumer(text: &str) -> Result<(), Fault> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let rule = "consists of `A-Z`, `a-z`, `0-9`, `-` and `_`";
    name("consumer", text, text.bytes().all(is_legal), rule)
}

fn name(key: &str, text: &str, is_legal: bool, rule: &str) -> Result<(), Fault> {
    if text.is_empty() {
        return fault(
            format!("`{key}` is empty"),
            format!("write the name to store, `{key} = \"…\"`"),
        );
    }
    if text.len() > NAME_BYTES_MAX {
        let wrong = format!(
            "`{key}` has {} bytes; at most {NAME_BYTES_MAX} are stored",
            text.len()
        );
        return fault(wrong, "write a shorter name");
    }
    if is_legal {
        return Ok(());
    }
    fault(format!("`{key}` {rule}"), write_instead(key, text))
}

fn write_instead(key: &str, text: &str) -> String {
    match suggestion(text) {
        Some(name) => format!("write `{key} = \"{name}\"`"),
        None => format!("write `{key} = \"…\"` in these characters"),
    }
}

pub(crate) fn subject(text: &str) -> Result<(), Fault> {
    if text.is_empty() {
        return fault(
            "`subject` is empty",
            "leave `subject` out to get the default subject",
        );
    }
    if text.len() > SUBJECT_BYTES_MAX {
        let wrong = format!(
            "`subject` has {} bytes; at most {SUBJECT_BYTES_MAX} are allowed",
            text.len()
        );
        return fault(wrong, "write a shorter subject");
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return fault(
            "`subject` contains white space or a control character",
            "separate words by `-` or `_`",
        );
    }
    if text.contains(['*', '>']) {
        let fix = "write the whole subject without `*` and `>`; wildcards belong into a consumer's filter";
        return fault(
            "`subject` contains a wildcard, but a message has one subject",
            fix,
        );
    }
    if text.starts_with('$') {
        let fix = "start with a word of your own, for example `audit.orders`";
        return fault("`subject` starts with `$`, which is reserved for the server", fix);
    }
    if text.split('.').any(str::is_empty) {
        let fix = "write non-empty tokens with single dots between them, for example `audit.orders`";
        return fault("`subject` has an empty token", fix);
    }
    Ok(())
}

/// The nearest legal name, for error messages: `OrderPlaced` and `order.placed` become
/// `order_placed`.
pub(crate) fn suggestion(text: &str) -> Option<String> {
    if !text.is_ascii() {
        // Without its other letters, the name would be a different word.
        return None;
    }
    let mut name = String::new();
    let mut within_word = false;
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() {
            within_word = false;
            if !name.is_empty() && !name.ends_with('_') {
                name.push('_');
            }
        } else if !name.is_empty() || c.is_ascii_alphabetic() {
            if c.is_ascii_uppercase() && within_word {
                name.push('_');
            }
            within_word = !c.is_ascii_uppercase();
            name.push(c.to_ascii_lowercase());
        }
    }
    name.truncate(NAME_BYTES_MAX);
    let name = name.trim_end_matches('_');
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // An empty `expected` means that the name is accepted.
    fn check(outcome: Result<(), Fault>, expected: &str) {
        match outcome {
            Ok(()) => assert_eq!(expected, "", "was accepted"),
            Err(Fault { wrong, fix }) => {
                let message = format!("{wrong}\nnote: {fix}");
                assert!(
                    !expected.is_empty() && message.contains(expected),
                    "{expected:?} is not in {message:?}"
                );
            }
        }
    }

    #[test]
    fn event_names() {
        for (text, expected) in [
            ("placed", ""),
            ("p", ""),
            ("line-item_2", ""),
            ("", "`name` is empty"),
            ("order.placed", "write `name = \"order_placed\"`"),
            ("OrderPlaced", "write `name = \"order_placed\"`"),
            ("order placed", "write `name = \"order_placed\"`"),
            ("2nd", "write `name = \"nd\"`"),
            ("-placed", "write `name = \"placed\"`"),
            ("größe", "a lower-case letter followed by"),
            ("*", "in these characters"),
        ] {
            check(event_name("name", text), expected);
        }
        check(event_name("aggregate", &"a".repeat(64)), "");
        check(
            event_name("aggregate", &"a".repeat(65)),
            "`aggregate` has 65 bytes; at most 64",
        );
    }

    #[test]
    fn subjects() {
        for (text, expected) in [
            ("audit.orders", ""),
            ("Audit", ""),
            ("a$b", ""),
            ("", "`subject` is empty"),
            ("a b", "white space"),
            ("a\u{7}", "white space or a control character"),
            ("a.*", "wildcard"),
            ("a.b*", "wildcard"),
            (">", "wildcard"),
            ("$JS.x", "reserved for the server"),
            (".a", "empty token"),
            ("a..b", "empty token"),
            ("a.", "empty token"),
        ] {
            check(subject(text), expected);
        }
        check(subject(&"a".repeat(255)), "");
        check(subject(&"a".repeat(256)), "256 bytes; at most 255");
    }

    #[test]
    fn consumers() {
        for (text, expected) in [
            ("inventory", ""),
            ("Billing-2_eu", ""),
            ("2", ""),
            ("", "`consumer` is empty"),
            ("billing.eu", "write `consumer = \"billing_eu\"`"),
            ("ä", "in these characters"),
        ] {
            check(consumer(text), expected);
        }
        check(consumer(&"a".repeat(65)), "65 bytes; at most 64");
    }

    #[test]
    fn suggestions_are_legal_names() {
        for text in [
            "OrderPlaced",
            "HTTPRequest",
            "order.placed",
            "  a  b ",
            "9lives",
            &"aB".repeat(70),
        ] {
            let name = suggestion(text).expect("has letters");
            assert!(event_name("name", &name).is_ok(), "{text:?} became {name:?}");
        }
        assert_eq!(suggestion("OrderPlaced").as_deref(), Some("order_placed"));
        assert_eq!(suggestion("***"), None);
        assert_eq!(suggestion("Größe"), None);
    }
}

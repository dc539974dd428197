//! The rules for names that are stored or sent. A wrong name would otherwise fail later, in a
//! subject, a filter or a primary key.

const NAME_BYTES_MAX: usize = 64;
const SUBJECT_BYTES_MAX: usize = 255;

/// Checks a name against `[a-z][a-z0-9_-]{0,63}`. Dots would separate the tokens of a subject.
pub(crate) fn event_name(text: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let starts = text.starts_with(|first: char| first.is_ascii_lowercase());
    let rule = "a lower-case letter followed by `a-z`, `0-9`, `-` and `_`";
    name(text, starts && text.bytes().all(is_legal), rule)
}

/// Checks a consumer name against `[A-Za-z0-9_-]{1,64}`.
pub(crate) fn consumer(text: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    name(
        text,
        text.bytes().all(is_legal),
        "`A-Z`, `a-z`, `0-9`, `-` and `_`",
    )
}

fn name(text: &str, is_legal: bool, rule: &str) -> Result<(), String> {
    if is_legal && (1..=NAME_BYTES_MAX).contains(&text.len()) {
        return Ok(());
    }
    Err(format!("consists of 1 to {NAME_BYTES_MAX} characters: {rule}"))
}

pub(crate) fn subject(text: &str) -> Result<(), String> {
    let is_illegal = |c: char| c.is_whitespace() || c.is_control() || "*>".contains(c);
    let is_legal = !text.contains(is_illegal)
        && !text.starts_with('$')
        && text.split('.').all(|token| !token.is_empty());
    if is_legal && text.len() <= SUBJECT_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "consists of words with single dots between them, at most {SUBJECT_BYTES_MAX} bytes, without white space, control characters, `*`, `>` \
         and a leading `$`"
    ))
}

/// `OrderPlaced` becomes `order_placed`.
pub(crate) fn snake_case(ident: &str) -> String {
    let mut name = String::new();
    for c in ident.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: fn(&str) -> Result<(), String>, legal: &[&str], illegal: &[&str]) {
        for text in legal {
            assert!(rule(text).is_ok(), "{text:?}");
        }
        for text in illegal {
            assert!(rule(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn event_names() {
        check(
            event_name,
            &["placed", "p", "line-item_2", &"a".repeat(64)],
            &[
                "",
                "order.placed",
                "OrderPlaced",
                "order placed",
                "2nd",
                "-placed",
                "größe",
                "*",
                &"a".repeat(65),
            ],
        );
    }

    #[test]
    fn subjects() {
        check(
            subject,
            &["audit.orders", "Audit", "a$b", &"a".repeat(255)],
            &[
                "",
                "a b",
                "a\u{7}",
                "a.*",
                "a.b*",
                ">",
                "$JS.x",
                ".a",
                "a..b",
                "a.",
                &"a".repeat(256),
            ],
        );
    }

    #[test]
    fn consumers() {
        check(
            consumer,
            &["inventory", "Billing-2_eu", "2", &"a".repeat(64)],
            &["", "billing.eu", "ä", &"a".repeat(65)],
        );
    }
}

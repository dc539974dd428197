//! Formats numbers, times and names.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// `1 message`, `2 messages`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

pub(crate) fn at_least(count: u64) -> String {
    format!("{}+", with_commas(count))
}

pub(crate) fn with_commas(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", with_commas(count / 1_000), count % 1_000),
    }
}

pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A duration for sentences.
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A duration for columns.
pub fn compact(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..=9 => format!("{:.1}s", duration.as_secs_f64()),
        10..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// UTC time, to the second.
pub fn utc(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let text = time.to_offset(UtcOffset::UTC).format(&form);
    text.unwrap_or_else(|_| time.to_string())
}

/// The value's text, or empty.
pub fn any(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// `yes` or empty.
pub fn yes(is_so: bool) -> String {
    if is_so { "yes".to_owned() } else { String::new() }
}

/// Quotes a name for a shell, if needed.
pub fn quoted(name: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./:=@%+,".contains(character);
    // A leading dash would be an option.
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain) {
        return name.to_owned();
    }
    // Terminals do not copy control characters. They are escaped in the form `$'…'` of bash, ksh
    // and zsh.
    if name.chars().any(is_hidden) {
        let mut text = "$'".to_owned();
        for character in name.chars() {
            match character {
                '\'' | '\\' => text.extend(['\\', character]),
                _ if is_hidden(character) => {
                    for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                _ => text.push(character),
            }
        }
        text.push('\'');
        return text;
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

fn is_hidden(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_one_unit() {
        let shown = |seconds| compact(Duration::from_secs(seconds));
        assert_eq!(
            [0, 10, 119, 120, 7200, 172_800].map(shown),
            ["0.0s", "10s", "119s", "2m", "2h", "2d"]
        );
        assert_eq!(compact(Duration::from_millis(1850)), "1.9s");
    }

    #[test]
    fn large_counts_have_commas() {
        assert_eq!([0, 999, 1_000].map(with_commas), ["0", "999", "1,000"]);
        assert_eq!(at_least(1_002_003), "1,002,003+");
    }

    #[test]
    fn a_control_character_in_a_command_can_be_copied() {
        assert_eq!(quoted("order/a\u{1b}b"), "$'order/a\\x1bb'");
        assert_eq!(quoted("it's\n\\"), "$'it\\'s\\x0a\\\\'");
        assert_eq!(quoted("a\u{202e}"), "$'a\\xe2\\x80\\xae'");
    }

    #[test]
    fn shell_metacharacters_are_quoted() {
        assert_eq!(quoted("order/4711"), "order/4711");
        assert_eq!(quoted("order/4711; rm -r ~"), "'order/4711; rm -r ~'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!((quoted(""), quoted("-rf")), ("''".to_owned(), "'-rf'".to_owned()));
    }
}

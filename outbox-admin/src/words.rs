//! Numbers and times in sentences, and names in commands.

use std::time::Duration;

/// `1 message`, `2 messages`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// A duration as people say it, with one unit.
pub(crate) fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A name as an argument in a shell: in quotes, unless each shell takes it as it is.
#[must_use]
pub fn quoted(name: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./:=@%+,".contains(character);
    // A word that begins with a dash would be an option.
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(quoted("order/4711"), "order/4711");
        assert_eq!(quoted("order/4711; rm -r ~"), "'order/4711; rm -r ~'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!((quoted(""), quoted("-rf")), ("''".to_owned(), "'-rf'".to_owned()));
    }
}

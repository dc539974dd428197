//! Texts that somebody else wrote, made harmless for a terminal.

/// A text in which control characters are escaped.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        // Beside control characters, those that turn the direction of a text.
        match character {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => plain.extend(character.escape_unicode()),
            _ if character.is_control() => plain.extend(character.escape_debug()),
            _ => plain.push(character),
        }
    }
    plain
}

/// A text of several lines without control characters: it may hold ids and errors that somebody else wrote.
pub(crate) fn harmless(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}

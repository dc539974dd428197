//! Makes foreign text safe for a terminal.

pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => plain.extend(character.escape_unicode()),
            _ if character.is_control() => plain.extend(character.escape_debug()),
            _ => plain.push(character),
        }
    }
    plain
}

pub(crate) fn harmless(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}

//! Durations as people write them: `500ms`, `15s`, `10m`, `2h`, `7d`. A number without a unit is refused.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Each unit in milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60 * 1000),
    ("h", 3600 * 1000),
    ("d", 24 * 3600 * 1000),
];

/// For `#[serde(deserialize_with)]`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "`{text}` is no duration; write a whole number and a unit, such as `500ms`, `15s`, `10m`, `2h` or `7d`"
        ))
    })
}

/// As [`deserialize`], for settings that may be absent.
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserialize(deserializer).map(Some)
}

pub(crate) fn parse(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let milliseconds = number.parse::<u64>().ok()?.checked_mul(*factor)?;
    Some(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(parse("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse("14d"), Some(Duration::from_secs(14 * 24 * 3600)));
        for text in [
            "",
            "15",
            "s",
            "1.5s",
            "-1s",
            "15 s",
            "15sec",
            "99999999999999999999d",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

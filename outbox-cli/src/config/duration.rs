//! Durations as people write them: `500ms`, `15s`, `10m`, `2h`, `7d`. A number without a unit is refused.

use std::time::Duration;

use outbox_admin::input;
use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    input::duration(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "`{text}` is no duration; write a whole number and a unit, such as `500ms`, `15s`, `10m`, `2h` or `7d`"
        ))
    })
}

/// As [`deserialize`], for settings that may be absent.
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserialize(deserializer).map(Some)
}

//! Durations in the file: `500ms`, `15s`, `10m`, `2h`, `7d`. A unit is required.

use std::time::Duration;

use crate::admin::input;
use serde::{Deserialize, Deserializer};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    input::duration(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "`{text}` is not a duration; write a whole number and a unit, such as `500ms`, `15s`, `10m`, `2h` or `7d`"
        ))
    })
}

pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserialize(deserializer).map(Some)
}

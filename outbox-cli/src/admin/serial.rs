//! JSON formats: ids and names as text, times as RFC 3339 in UTC, durations in seconds.

use std::fmt::Display;
use std::time::Duration;

use outbox::core::MessageStatus;
use serde::Serializer;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

pub(crate) fn text<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(crate) fn text_if_any<S: Serializer>(value: &Option<impl Display>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

pub(crate) fn status<S: Serializer>(status: &MessageStatus, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(status.as_str())
}

pub(crate) fn time<S: Serializer>(time: &OffsetDateTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&rfc3339(*time))
}

pub(crate) fn time_if_any<S: Serializer>(time: &Option<OffsetDateTime>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => to.serialize_str(&rfc3339(*time)),
        None => to.serialize_none(),
    }
}

pub(crate) fn seconds<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(in_seconds(*duration))
}

pub(crate) fn seconds_if_any<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => to.serialize_f64(in_seconds(*duration)),
        None => to.serialize_none(),
    }
}

fn in_seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Years outside RFC 3339 occur only in damaged rows.
pub(crate) fn rfc3339(time: OffsetDateTime) -> String {
    let text = time.to_offset(UtcOffset::UTC).format(&Rfc3339);
    text.unwrap_or_else(|_| time.to_string())
}

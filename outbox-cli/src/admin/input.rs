//! Parses operator input. Errors state the expected form.

use std::time::Duration;

use outbox::core::{Aggregate, MessageId, MessageStatus, OperationId, Place};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime};
use uuid::Uuid;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60 * 1000),
    ("h", 3600 * 1000),
    ("d", 24 * 3600 * 1000),
];

/// A number and a unit: `500ms`, `15s`, `10m`, `2h` or `7d`.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let milliseconds = number.parse::<u64>().ok()?.checked_mul(*factor)?;
    Some(Duration::from_millis(milliseconds))
}

/// An age such as `2h`, a UTC date, or an RFC 3339 time.
///
/// # Errors
///
/// Other forms of text.
pub fn time(text: &str) -> Result<OffsetDateTime, String> {
    if let Some(ago) = duration(text) {
        let time = time::Duration::try_from(ago)
            .ok()
            .and_then(|ago| OffsetDateTime::now_utc().checked_sub(ago));
        return time.ok_or_else(|| "too long ago".to_owned());
    }
    if let Ok(date) = Date::parse(text, format_description!("[year]-[month]-[day]")) {
        return Ok(date.midnight().assume_utc());
    }
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
        "invalid time; write `2h` for two hours ago, a date such as `2026-11-20` (UTC), or a time such as `2026-11-20T06:00:00Z`"
            .to_owned()
    })
}

/// An aggregate's type and id, such as `order/4711`.
///
/// # Errors
///
/// A missing type or id.
pub fn aggregate(text: &str) -> Result<Aggregate, String> {
    match text.split_once('/') {
        Some((aggregate_type, id)) if !aggregate_type.is_empty() && !id.is_empty() => {
            Ok(Aggregate::new(aggregate_type, id))
        }
        _ => Err("invalid aggregate; write type and id, such as `order/4711`".to_owned()),
    }
}

/// A message id.
///
/// # Errors
///
/// The text is no UUID.
pub fn message_id(text: &str) -> Result<MessageId, String> {
    let id = Uuid::parse_str(text).map(MessageId::from);
    id.map_err(|_| "invalid message id; `outbox list` shows ids (UUIDs)".to_owned())
}

/// An operation id.
///
/// # Errors
///
/// The text is no UUID.
pub fn operation_id(text: &str) -> Result<OperationId, String> {
    let id = Uuid::parse_str(text).map(OperationId::from);
    id.map_err(|_| "invalid operation id; `outbox audit` shows ids (UUIDs)".to_owned())
}

/// All statuses.
pub const STATUSES: [MessageStatus; 5] = [
    MessageStatus::Pending,
    MessageStatus::Waiting,
    MessageStatus::Published,
    MessageStatus::Dead,
    MessageStatus::Logged,
];

/// A status.
///
/// # Errors
///
/// Unknown status.
pub fn status(word: &str) -> Result<MessageStatus, String> {
    let found = STATUSES.into_iter().find(|status| status.as_str() == word);
    found.ok_or_else(|| {
        let words = STATUSES.map(MessageStatus::as_str).join(", ");
        format!("unknown status; use one of {words}")
    })
}

/// A dead letter key.
///
/// # Errors
///
/// The text is no UUID.
pub fn letter_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text)
        .map_err(|_| "invalid dead letter key; `outbox dead-letters list` shows keys (UUIDs)".to_owned())
}

/// A list position: row id, dot, message id.
///
/// # Errors
///
/// A malformed position.
pub fn place(text: &str) -> Result<Place, String> {
    let malformed = || "invalid position; write a row id, a dot and a message id".to_owned();
    let (row_id, id) = text.split_once('.').ok_or_else(malformed)?;
    Ok(Place {
        row_id: row_id.parse().map_err(|_| malformed())?,
        id: message_id(id).map_err(|_| malformed())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("14d"), Some(Duration::from_secs(14 * 24 * 3600)));
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
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn time_input_is_an_age_date_or_timestamp() {
        let midnight = super::time("2026-11-20").unwrap();
        assert_eq!(super::time("2026-11-20T01:00:00+01:00").unwrap(), midnight);
        let before = OffsetDateTime::now_utc();
        let two_hours_ago = super::time("2h").unwrap() + time::Duration::hours(2);
        assert!((before..=OffsetDateTime::now_utc()).contains(&two_hours_ago));
        for text in ["", "2", "yesterday", "2026-11-20T06:00"] {
            super::time(text).unwrap_err();
        }
    }
}

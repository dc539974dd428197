//! Converts values to their stored form.

use std::time::Duration;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::Value;
use time::OffsetDateTime;

use super::Dialect;

/// MySQL's last time, 9999-12-31 23:59:59.999999 UTC, in microseconds since 1970.
pub(crate) const TIME_MICROS_MAX: i64 = 253_402_300_799_999_999;

/// Every database can add a century, the longest duration, to its clock.
pub(crate) fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(duration.as_micros())
        .unwrap_or(CENTURY)
        .min(CENTURY)
}

/// A time in microseconds since 1970, rounded up, at least 1.
pub(crate) fn time_micros(time: OffsetDateTime) -> i64 {
    let micros = (time.unix_timestamp_nanos() + 999).div_euclid(1000);
    i64::try_from(micros)
        .unwrap_or(TIME_MICROS_MAX)
        .clamp(1, TIME_MICROS_MAX)
}

/// 0 means no delay.
pub(crate) fn delay_micros(message: &NewMessage) -> i64 {
    message.delayed_until().map_or(0, time_micros)
}

pub(crate) fn headers_json(message: &NewMessage) -> String {
    serde_json::to_string(message.headers()).expect("a map of strings is JSON")
}

pub(crate) fn keys(dialect: &Dialect, aggregate: &Aggregate) -> [Value; 2] {
    [dialect.key(&aggregate.aggregate_type), dialect.key(&aggregate.id)]
}

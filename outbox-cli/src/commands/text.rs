//! Values as people read them.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use crate::output::{Column, plain};

/// A time in UTC, to the second.
pub(super) fn time(time: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let text = time.to_offset(UtcOffset::UTC).format(format);
    // A year beyond the format only comes from a damaged row.
    text.unwrap_or_else(|_| time.to_string())
}

/// A duration with one unit.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..=9 => format!("{:.1}s", duration.as_secs_f64()),
        10..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The text, or an empty one.
pub(super) fn any<T: Display>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// `yes` or nothing.
pub(super) fn yes(is_so: bool) -> String {
    if is_so { "yes".to_owned() } else { String::new() }
}

/// `1 message`, `2 messages`.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// A line for each column that has a value.
pub(super) fn lines<T>(columns: &[Column<T>], thing: &T) -> String {
    let values = columns.iter().map(|column| (column.name, (column.text)(thing)));
    let values: Vec<(&str, String)> = values.filter(|(_, value)| !value.is_empty()).collect();
    let width = values
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for (name, value) in values {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "{name:<width$}  {}", plain(&value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_one_unit() {
        let shown = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(
            [0, 10, 119, 120, 7200, 172_800].map(shown),
            ["0.0s", "10s", "119s", "2m", "2h", "2d"]
        );
        assert_eq!(duration(Duration::from_millis(1850)), "1.9s");
    }
}

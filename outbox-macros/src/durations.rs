//! Durations in attributes: `"250ms"`, `"30s"`, `"5m"`, `"1h"`, `"2d"`, and ranges such as
//! `"1s..5m"`.

use std::time::Duration;

use crate::names::Fault;

/// Longest duration. Adding it to a clock cannot overflow.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Parses a whole number and a unit, at most 366 days.
pub(crate) fn duration(key: &str, text: &str, example: &str) -> Result<Duration, Fault> {
    let Some(duration) = parse(text) else {
        return Err(Fault {
            wrong: format!("`{text}` is not a duration: use a whole number and `ms`, `s`, `m`, `h` or `d`"),
            fix: format!("write for example `{key} = \"{example}\"`"),
        });
    };
    if duration > LONGEST {
        return Err(Fault {
            wrong: format!("`{text}` is longer than 366 days"),
            fix: format!("write a shorter time, for example `{key} = \"{example}\"`"),
        });
    }
    Ok(duration)
}

/// Parses `min..max`, both above zero.
pub(crate) fn range(key: &str, text: &str, example: &str) -> Result<(Duration, Duration), Fault> {
    let fault = |wrong: String, fix: String| Err(Fault { wrong, fix });
    let Some((min, max)) = text.split_once("..") else {
        let wrong = format!("`{key}` takes a minimum and a maximum");
        return fault(wrong, format!("write both, for example `{key} = \"{example}\"`"));
    };
    let (shortest, longest) = (duration(key, min, example)?, duration(key, max, example)?);
    if longest < shortest {
        let wrong = format!("`{key}` begins with its maximum");
        return fault(wrong, format!("write `{key} = \"{max}..{min}\"`"));
    }
    if shortest.is_zero() {
        let wrong = format!("`{key}` begins at zero, but a pause must be longer");
        return fault(wrong, format!("write for example `{key} = \"{example}\"`"));
    }
    Ok((shortest, longest))
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // A number too large for an integer is too long a duration in any unit.
    let count = || number.parse().unwrap_or(u64::MAX);
    (!number.is_empty()).then(|| Duration::from_millis(count().saturating_mul(unit_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: std::fmt::Debug>(outcome: Result<T, Fault>) -> String {
        match outcome {
            Ok(value) => format!("{value:?}"),
            Err(Fault { wrong, fix }) => format!("{wrong}\nnote: {fix}"),
        }
    }

    #[test]
    fn times_in_every_unit() {
        for (written, expected) in [
            ("250ms", "250ms"),
            ("30s", "30s"),
            ("5m", "300s"),
            ("1h", "3600s"),
            ("2d", "172800s"),
            ("0s", "0ns"),
            ("366d", "31622400s"),
        ] {
            assert_eq!(text(duration("timeout", written, "20s")), expected, "{written}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for written in ["30", "30 s", "30sec", "", "s", "1.5s", "-1s", "1m30s", "5µs"] {
            let expected = format!(
                "`{written}` is not a duration: use a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write for example `timeout = \"20s\"`"
            );
            assert_eq!(text(duration("timeout", written, "20s")), expected);
        }
    }

    #[test]
    fn duration_beyond_366_days_is_rejected() {
        for written in ["367d", "18446744073709551615d", "99999999999999999999ms"] {
            let expected = format!(
                "`{written}` is longer than 366 days\nnote: write a shorter time, for example `gap = \"30s\"`"
            );
            assert_eq!(text(duration("gap", written, "30s")), expected);
        }
    }

    #[test]
    fn ranges_must_increase() {
        for (written, expected) in [
            ("1s..5m", "(1s, 300s)"),
            ("1s..1s", "(1s, 1s)"),
            (
                "1s",
                "`backoff` takes a minimum and a maximum\nnote: write both, for example `backoff = \"1s..5m\"`",
            ),
            (
                "5m..1s",
                "`backoff` begins with its maximum\nnote: write `backoff = \"1s..5m\"`",
            ),
            (
                "0s..5m",
                "`backoff` begins at zero, but a pause must be longer\nnote: write for example `backoff = \"1s..5m\"`",
            ),
            (
                "0s..0s",
                "`backoff` begins at zero, but a pause must be longer\nnote: write for example `backoff = \"1s..5m\"`",
            ),
            (
                "1s..=2m",
                "`=2m` is not a duration: use a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write for example `backoff = \"1s..5m\"`",
            ),
        ] {
            assert_eq!(text(range("backoff", written, "1s..5m")), expected, "{written}");
        }
    }
}

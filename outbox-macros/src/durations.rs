//! Durations in attributes: `"250ms"`, `"30s"`, `"5m"`, `"1h"`, `"2d"`, and ranges such as
//! `"1s..5m"`.

use std::time::Duration;

/// Longest duration. Adding it to a clock cannot overflow.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse(text).filter(|duration| *duration <= LONGEST);
    duration.ok_or_else(|| "is a whole number and `ms`, `s`, `m`, `h` or `d`, at most 366 days".to_owned())
}

/// As [`duration`], but above zero.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "is zero".to_owned())
}

pub(crate) fn range(text: &str) -> Result<(Duration, Duration), String> {
    let range = text.split_once("..").and_then(|(min, max)| {
        let range = (positive(min).ok()?, positive(max).ok()?);
        (range.0 <= range.1).then_some(range)
    });
    range.ok_or_else(|| "is the shortest and the longest duration, both above zero".to_owned())
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

    #[test]
    fn times_in_every_unit() {
        for (written, seconds) in [
            ("250ms", 0.25),
            ("30s", 30.0),
            ("5m", 300.0),
            ("1h", 3_600.0),
            ("2d", 172_800.0),
            ("0s", 0.0),
            ("366d", 31_622_400.0),
        ] {
            let parsed = duration(written).ok();
            assert_eq!(parsed, Some(Duration::from_secs_f64(seconds)), "{written}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for written in [
            "30",
            "30 s",
            "30sec",
            "",
            "s",
            "1.5s",
            "-1s",
            "1m30s",
            "5µs",
            "367d",
            "18446744073709551615d",
            "99999999999999999999ms",
        ] {
            assert!(duration(written).is_err(), "{written}");
        }
        assert!(positive("0s").is_err());
    }

    #[test]
    fn ranges_must_increase() {
        let seconds = Duration::from_secs;
        for (written, expected) in [("1s..5m", (1, 300)), ("1s..1s", (1, 1))] {
            let (min, max) = range(written).expect(written);
            assert_eq!((min, max), (seconds(expected.0), seconds(expected.1)));
        }
        for written in ["1s", "5m..1s", "0s..5m", "0s..0s", "1s..=2m"] {
            assert!(range(written).is_err(), "{written}");
        }
    }
}

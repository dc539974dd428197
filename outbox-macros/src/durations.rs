//! Durations as users write them: `"250ms"`, `"30s"`, `"5m"`, `"1h"`, `"2d"`, and ranges such as `"1s..5m"`.
//!
//! Pure functions on text; nothing here handles tokens.

use std::time::Duration;

use crate::names::Fault;

/// No setting needs a longer duration, and adding this much to a clock cannot overflow.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Reads a whole number and a unit, at most 366 days. `example` is suggested if nothing better is known.
pub(crate) fn duration(key: &str, text: &str, example: &str) -> Result<Duration, Fault> {
    let Some(duration) = parse(text) else {
        let better = nearest(text).unwrap_or_else(|| example.to_owned());
        return Err(Fault {
            wrong: format!("`{text}` is not a length of time: a whole number and `ms`, `s`, `m`, `h` or `d`"),
            fix: format!("write `{key} = \"{better}\"`"),
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

/// Reads `min..max`, both above zero.
pub(crate) fn range(key: &str, text: &str, example: &str) -> Result<(Duration, Duration), Fault> {
    let fault = |wrong: String, fix: String| Err(Fault { wrong, fix });
    let Some((min, max)) = text.split_once("..") else {
        let wrong = format!("`{key}` goes from a shortest to a longest time");
        return fault(wrong, format!("write both, for example `{key} = \"{example}\"`"));
    };
    let (from, to) = example.split_once("..").unwrap_or((example, example));
    let whole = |min: &str, max: &str| format!("write `{key} = \"{min}..{max}\"`");
    let better = |text: &str, example: &str| nearest(text).unwrap_or_else(|| example.to_owned());
    let end = |text: &str| {
        duration(key, text, example).map_err(|Fault { wrong, .. }| Fault {
            wrong,
            fix: whole(&better(min, from), &better(max, to)),
        })
    };
    let (shortest, longest) = (end(min)?, end(max)?);
    if longest < shortest {
        let wrong = format!("`{key}` begins with its longest time");
        return fault(wrong, whole(max, min));
    }
    if shortest.is_zero() {
        let wrong = format!("`{key}` begins at zero, which is no pause");
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
    // A number with too many digits for an integer is too long in any unit.
    let count = || number.parse().unwrap_or(u64::MAX);
    (!number.is_empty()).then(|| Duration::from_millis(count().saturating_mul(unit_ms)))
}

/// A guess at the intended text: `5 min` becomes `5m`, and a bare `30` is in seconds.
fn nearest(text: &str) -> Option<String> {
    let text = text.trim().trim_start_matches('=').to_ascii_lowercase();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim_start() {
        "ms" | "msec" | "millis" | "milliseconds" => "ms",
        "" | "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return None,
    };
    let meant = format!("{number}{unit}");
    parse(&meant).filter(|time| *time <= LONGEST).map(|_| meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The outcome as text: the value, or the error's message.
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
    fn what_is_no_time_is_answered_with_what_was_probably_meant() {
        for (written, meant) in [
            ("30", "30s"),
            ("30 s", "30s"),
            ("30sec", "30s"),
            ("5 Min", "5m"),
            ("100 millis", "100ms"),
            ("2 days", "2d"),
            ("1hour", "1h"),
            ("", "20s"),
            ("s", "20s"),
            ("1.5s", "20s"),
            ("-1s", "20s"),
            ("1m30s", "20s"),
            ("1 month", "20s"),
            ("5µs", "20s"),
            ("999999999999999999999 sec", "20s"),
        ] {
            let expected = format!(
                "`{written}` is not a length of time: a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write `timeout = \"{meant}\"`"
            );
            assert_eq!(text(duration("timeout", written, "20s")), expected);
        }
    }

    #[test]
    fn a_time_that_no_clock_can_take_is_too_long() {
        for written in ["367d", "18446744073709551615d", "99999999999999999999ms"] {
            let expected = format!(
                "`{written}` is longer than 366 days\nnote: write a shorter time, for example `gap = \"30s\"`"
            );
            assert_eq!(text(duration("gap", written, "30s")), expected);
        }
    }

    #[test]
    fn ranges_go_upwards() {
        for (written, expected) in [
            ("1s..5m", "(1s, 300s)"),
            ("1s..1s", "(1s, 1s)"),
            (
                "1s",
                "`backoff` goes from a shortest to a longest time\nnote: write both, for example `backoff = \"1s..5m\"`",
            ),
            (
                "5m..1s",
                "`backoff` begins with its longest time\nnote: write `backoff = \"1s..5m\"`",
            ),
            (
                "0s..5m",
                "`backoff` begins at zero, which is no pause\nnote: write for example `backoff = \"1s..5m\"`",
            ),
            (
                "0s..0s",
                "`backoff` begins at zero, which is no pause\nnote: write for example `backoff = \"1s..5m\"`",
            ),
            (
                "1s..=2m",
                "`=2m` is not a length of time: a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write `backoff = \"1s..2m\"`",
            ),
            (
                "2s .. 400d",
                "`2s ` is not a length of time: a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write `backoff = \"2s..5m\"`",
            ),
            (
                "..",
                "`` is not a length of time: a whole number and `ms`, `s`, `m`, `h` or `d`\n\
                 note: write `backoff = \"1s..5m\"`",
            ),
        ] {
            assert_eq!(text(range("backoff", written, "1s..5m")), expected, "{written}");
        }
    }
}

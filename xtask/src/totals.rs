//! How many tests passed, failed and were skipped, from the last lines of the harnesses and from the log of the skips.

use std::collections::BTreeMap;

/// The start of a line of that log if nothing was left out: the promise does not apply to what was tested.
const NOT_APPLICABLE: &str = "does not apply: ";

/// The counts of the harnesses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

impl Totals {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished …`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut totals = Self::default();
        for count in counts.split(';') {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            match what {
                "passed" => totals.passed = number.parse().ok()?,
                "failed" => totals.failed = number.parse().ok()?,
                "ignored" => totals.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(totals)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// What is printed at the end, given the log of the skips.
    pub(crate) fn closing_lines(self, log: &str) -> Vec<String> {
        let (mut lines, mut skipped, mut not_applicable) = (Vec::new(), 0, 0);
        for (line, times) in count_lines(log) {
            if let Some(line) = line.strip_prefix(NOT_APPLICABLE) {
                not_applicable += times;
                lines.push(format!("does not apply: {line} ({times} times)"));
            } else {
                skipped += times;
                lines.push(format!("skipped: {line} ({times} times)"));
            }
        }
        if self.ignored > 0 {
            lines.push(format!("skipped: {} ignored tests", self.ignored));
        }
        // The harness has counted those of the log as passed.
        let passed = self.passed.saturating_sub(skipped + not_applicable);
        let skipped = skipped + self.ignored;
        lines.push(format!(
            "{passed} passed, {} failed, {skipped} skipped",
            self.failed
        ));
        lines
    }
}

/// Each line with the number of times it occurs.
fn count_lines(text: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_line(line: &str, expected: Option<(usize, usize, usize)>) {
        let totals = Totals::parse(line).map(|totals| (totals.passed, totals.failed, totals.ignored));
        assert_eq!(totals, expected, "{line}");
    }

    #[test]
    fn result_lines_are_counted() {
        let ok =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        check_line(ok, Some((12, 0, 3)));
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        check_line(failed, Some((1, 2, 0)));
        check_line("test tests::result ... ok", None);
        check_line("running 3 tests", None);
        // A nested run inside the output of a test is indented or prefixed, and was counted by its own test.
        check_line("  test result: ok. 5 passed; 0 failed; 0 ignored", None);
        check_line("", None);
    }

    #[test]
    fn what_was_skipped_is_not_counted_as_passed() {
        let totals = Totals {
            passed: 10,
            failed: 1,
            ignored: 2,
        };
        let log = "a: no NATS\na: no NATS\ndoes not apply: b: one writer at a time\n";
        let expected = [
            "skipped: a: no NATS (2 times)",
            "does not apply: b: one writer at a time (1 times)",
            "skipped: 2 ignored tests",
            "7 passed, 1 failed, 4 skipped",
        ];
        assert_eq!(totals.closing_lines(log), expected);
    }

    #[test]
    fn repeated_skips_are_printed_once() {
        let counts = count_lines("store: no PostgreSQL\nbroker: no NATS\n\nstore: no PostgreSQL\n");
        assert_eq!(
            counts.into_iter().collect::<Vec<_>>(),
            [("broker: no NATS", 1), ("store: no PostgreSQL", 2)]
        );
    }
}

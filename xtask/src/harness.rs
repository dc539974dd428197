//! Parses the output of cargo's test harnesses: counts, failures, and tests that hang.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time limit without output. The slowest test takes three minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);
const LINES_MAX: usize = 20;
const NOT_APPLICABLE: &str = "does not apply: ";

#[derive(Debug, Default)]
pub(crate) struct Output {
    passed: usize,
    pub(crate) failed: usize,
    ignored: usize,
    running: bool,
    slow: BTreeSet<String>,
    pub(crate) failures: Vec<String>,
    inside: Option<usize>,
}

impl Output {
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if line.starts_with("running ") {
            self.running = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.count(result);
            (self.running, self.inside) = (false, None);
            self.slow.clear();
        } else if let Some(test) = line.strip_prefix("test ") {
            if let Some((name, _)) = test.split_once(" has been running for over ") {
                self.slow.insert(name.to_owned());
            } else if let Some((name, _)) = test.rsplit_once(" ... ") {
                self.slow.remove(name);
            }
        } else if line.starts_with("---- ") && line.ends_with(" ----") {
            self.inside = Some(0);
            self.failures.push(line.to_owned());
        } else if line == "failures:" {
            self.inside = None;
        } else if let Some(lines) = &mut self.inside {
            *lines = if line == "stack backtrace:" {
                LINES_MAX
            } else {
                *lines + 1
            };
            if *lines < LINES_MAX && !line.is_empty() {
                self.failures.push(line.to_owned());
            }
        }
    }

    fn count(&mut self, result: &str) {
        for count in result.split([';', '.']) {
            match count.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.ignored += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    pub(crate) fn patience(&self) -> Option<Duration> {
        self.running.then_some(SILENCE)
    }

    pub(crate) fn silence(&self) -> String {
        let minutes = SILENCE.as_secs() / 60;
        format!(
            "no test has ended for {minutes} minutes; slow tests: {:?}",
            self.slow
        )
    }

    pub(crate) fn closing_lines(&self, log: &str) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in log.lines().map(str::trim).filter(|line| !line.is_empty()) {
            *counts.entry(line).or_default() += 1;
        }
        let (mut lines, mut skipped, mut not_applicable) = (Vec::new(), 0, 0);
        for (line, times) in counts {
            if line.starts_with(NOT_APPLICABLE) {
                not_applicable += times;
                lines.push(format!("{line} ({times} times)"));
            } else {
                skipped += times;
                lines.push(format!("skipped: {line} ({times} times)"));
            }
        }
        if self.ignored > 0 {
            lines.push(format!("skipped: {} ignored tests", self.ignored));
        }
        let passed = self.passed.saturating_sub(skipped + not_applicable);
        let (failed, skipped) = (self.failed, skipped + self.ignored);
        lines.push(format!("{passed} passed, {failed} failed, {skipped} skipped"));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &str) -> Output {
        let mut output = Output::default();
        lines.lines().for_each(|line| output.read(line));
        output
    }

    #[test]
    fn results_are_added_up() {
        let output = after(
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s\n\
             test tests::result ... ok\n\
             \x20 test result: ok. 5 passed; 0 failed; 0 ignored\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n",
        );
        assert_eq!((output.passed, output.failed, output.ignored), (13, 2, 3));
    }

    #[test]
    fn skipped_tests_are_not_counted_as_passed() {
        let output = after("test result: FAILED. 10 passed; 1 failed; 2 ignored;");
        let log = "a: no NATS\na: no NATS\n\ndoes not apply: b: one writer at a time\n";
        let expected = [
            "skipped: a: no NATS (2 times)",
            "does not apply: b: one writer at a time (1 times)",
            "skipped: 2 ignored tests",
            "7 passed, 1 failed, 4 skipped",
        ];
        assert_eq!(output.closing_lines(log), expected);
    }

    #[test]
    fn messages_of_failed_tests_are_kept_without_backtraces() {
        let output = after(
            "test a ... FAILED\n\nfailures:\n\n---- relay::a stdout ----\n\nthread 'relay::a' panicked at a.rs:3:5:\n\
             two messages are missing\nstack backtrace:\n   0: begin_panic\n\n---- relay::b stdout ----\n\
             Error: \"no answer\"\n\nfailures:\n    relay::a\n\ntest result: FAILED. 1 passed; 2 failed\nnext\n",
        );
        let expected = [
            "---- relay::a stdout ----",
            "thread 'relay::a' panicked at a.rs:3:5:",
            "two messages are missing",
            "---- relay::b stdout ----",
            "Error: \"no answer\"",
        ];
        assert_eq!(output.failures, expected);
    }

    #[test]
    fn test_without_an_end_is_named() {
        let begun = "running 3 tests\ntest a::slow has been running for over 60 seconds\n\
             test a::stuck has been running for over 60 seconds\ntest a::slow ... ok\n";
        let output = after(begun);
        assert_eq!(output.patience(), Some(SILENCE));
        assert!(
            output.silence().ends_with("{\"a::stuck\"}"),
            "{}",
            output.silence()
        );
        let ended = format!("{begun}test result: ok. 3 passed; 0 failed\n");
        assert_eq!(after(&ended).patience(), None, "cargo may compile for longer");
    }
}

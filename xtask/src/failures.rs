//! What failed tests said, repeated at the end of a run, where somebody who sees only the end of its output finds it.

/// Lines that are kept of one test: the message of a panic comes first, and a backtrace is of no use here.
const LINES_MAX: usize = 20;

/// Reads the output of the test harness.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    lines: Vec<String>,
    /// Lines of the present test so far, while its output is printed.
    inside: Option<usize>,
}

impl Failures {
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.inside = Some(0);
            self.lines.push(line.to_owned());
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.inside = None;
        } else if let Some(lines) = &mut self.inside {
            *lines = if line == "stack backtrace:" {
                LINES_MAX
            } else {
                *lines + 1
            };
            if *lines <= LINES_MAX && !line.is_empty() && line != "stack backtrace:" {
                self.lines.push(line.to_owned());
            }
        }
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_said_is_repeated_without_backtraces() {
        let output = "\
running 3 tests
test a ... FAILED

failures:

---- relay::a stdout ----

thread 'relay::a' panicked at outbox-core/tests/it/a.rs:3:5:
two messages are missing
stack backtrace:
   0: begin_panic
             at ./src/lib.rs:1

---- relay::b stdout ----
Error: \"no answer\"

failures:
    relay::a
    relay::b

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
a line of the next program
";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        let expected = [
            "---- relay::a stdout ----",
            "thread 'relay::a' panicked at outbox-core/tests/it/a.rs:3:5:",
            "two messages are missing",
            "---- relay::b stdout ----",
            "Error: \"no answer\"",
        ];
        assert_eq!(failures.lines(), expected);
    }

    #[test]
    fn a_test_that_says_much_is_cut() {
        let mut failures = Failures::default();
        failures.read("---- a stdout ----");
        (0..1000).for_each(|line| failures.read(&line.to_string()));
        assert_eq!(failures.lines().len(), 1 + LINES_MAX);
    }
}

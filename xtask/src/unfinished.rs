//! Which tests began and have not ended, from the output of the harnesses. So a test that waits for ever is named, and not only the time that it took
//! from the others.

use std::collections::BTreeSet;
use std::time::Duration;

/// How long a harness may print nothing while its tests run. The slowest test takes three minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// What the lines so far tell.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// Whether a harness has begun and not ended.
    running: bool,
    /// Tests that the harness called slow, without those that have ended since.
    slow: BTreeSet<String>,
}

impl Unfinished {
    /// Reads a line of the output.
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("running ") {
            self.running = true;
        } else if line.starts_with("test result: ") {
            *self = Self::default();
        } else if let Some(test) = line.strip_prefix("test ") {
            if let Some((name, _)) = test.split_once(" has been running for over ") {
                self.slow.insert(name.to_owned());
            } else if let Some((name, _)) = test.rsplit_once(" ... ") {
                self.slow.remove(name);
            }
        }
    }

    /// How long the next line may take. `None` while cargo compiles, which is as slow as the machine.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.running.then_some(SILENCE)
    }

    /// For people: what waits.
    pub(crate) fn describe(&self) -> String {
        let names = if self.slow.is_empty() {
            "a test that the harness has not named".to_owned()
        } else {
            self.slow.iter().cloned().collect::<Vec<_>>().join(", ")
        };
        format!(
            "no test has ended for {} minutes: {names} waits for something that does not happen",
            SILENCE.as_secs() / 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[&str]) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for line in lines {
            unfinished.read(line);
        }
        unfinished
    }

    #[test]
    fn a_slow_test_without_an_end_is_named() {
        let begun = [
            "running 3 tests",
            "test a::quick ... ok",
            "test a::slow has been running for over 60 seconds",
            "test a::stuck has been running for over 60 seconds",
            "test a::slow ... ok",
        ];
        let unfinished = after(&begun);
        assert_eq!(unfinished.patience(), Some(SILENCE));
        let text = unfinished.describe();
        assert!(text.contains("a::stuck") && !text.contains("a::slow"), "{text}");
    }

    #[test]
    fn compiling_takes_as_long_as_it_takes() {
        assert_eq!(after(&[]).patience(), None);
        let ended = [
            "running 1 test",
            "test a ... ok",
            "test result: ok. 1 passed; 0 failed",
        ];
        assert_eq!(after(&ended).patience(), None);
    }
}

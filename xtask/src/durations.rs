//! Which test programs of a run took longest, from what cargo says at the start of each and the harness at its end.
//!
//! The two speak on different outputs, so a name may be read a moment after the first line of its harness. It counts all the same, as long as the harness runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Programs that are listed.
const LISTED_MAX: usize = 10;

/// What the lines so far tell.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// The program that cargo has named, until its harness begins.
    named: Option<String>,
    /// The program whose harness has begun, and whether cargo had named it by then.
    running: Option<String>,
    is_sure: bool,
    /// Seconds by program: its path, or what its tests are.
    seconds: BTreeMap<String, f64>,
}

impl Durations {
    /// Reads a line of cargo's own.
    pub(crate) fn read_cargo(&mut self, line: &str) {
        if let Some(name) = program(line) {
            self.named = Some(name);
        }
    }

    /// Reads a line of a harness.
    pub(crate) fn read(&mut self, line: &str) {
        if is_begin(line) {
            self.is_sure = self.named.is_some();
            self.running = self.named.take().or(self.running.take());
        } else if let Some(seconds) = seconds(line) {
            if !self.is_sure {
                self.running = self.named.take().or(self.running.take());
            }
            self.is_sure = false;
            if let Some(program) = &self.running {
                *self.seconds.entry(program.clone()).or_default() += seconds;
            }
        }
    }

    /// For people: the programs that took longest. `source` gives the file that a program was compiled from.
    pub(crate) fn lines(&self, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let mut programs: Vec<(&String, f64)> = self
            .seconds
            .iter()
            .map(|(program, seconds)| (program, *seconds))
            .collect();
        programs.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        programs.truncate(LISTED_MAX);
        programs
            .into_iter()
            .map(|(program, seconds)| {
                let name = source(program).unwrap_or_else(|| program.clone());
                format!("{name}: {seconds:.0} s")
            })
            .collect()
    }
}

/// The file that a program was compiled from, which names its crate: the program is called `it` in most of them. Cargo lists it first in a file beside the
/// program.
pub(crate) fn source_of(root: &Path, program: &str) -> Option<String> {
    let listed = fs::read_to_string(root.join(program).with_extension("d")).ok()?;
    main_source(&listed).map(str::to_owned)
}

/// There may be a manifest before it.
fn main_source(listed: &str) -> Option<&str> {
    listed.split_whitespace().find(|word| word.ends_with(".rs"))
}

/// The program of a line such as `Running tests/it/main.rs (target/debug/deps/it-0123456789abcdef)`, or what a line such as `Doc-tests outbox_core` announces.
fn program(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("documentation of {name}"));
    }
    let (_source, path) = line.strip_prefix("Running ")?.rsplit_once(" (")?;
    path.strip_suffix(')').map(str::to_owned)
}

/// Whether a harness begins with this line: `running 3 tests`.
fn is_begin(line: &str) -> bool {
    let line = line.trim_end();
    line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"))
}

/// The seconds of a line such as `test result: ok. 3 passed; …; finished in 12.34s`.
fn seconds(line: &str) -> Option<f64> {
    let (_counts, rest) = line.strip_prefix("test result: ")?.split_once("; finished in ")?;
    let (seconds, _) = rest.split_once('s')?;
    seconds.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "     Running unittests src/lib.rs (target/debug/deps/outbox_core-0a)";
    const CORE: &str = "     Running tests/it/main.rs (target/debug/deps/it-0b)";
    const NATS: &str = "     Running tests/it/main.rs (/elsewhere/debug/deps/it-0c)";

    fn end(seconds: &str) -> String {
        format!(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in {seconds}s"
        )
    }

    /// What is listed after these lines, in this order. Those of cargo begin with a space, as in its output.
    fn listed(lines: &[&str]) -> Vec<String> {
        let mut durations = Durations::default();
        for line in lines {
            match line.starts_with(' ') {
                true => durations.read_cargo(line),
                false => durations.read(line),
            }
        }
        durations.lines(|_| None)
    }

    #[test]
    fn the_longest_come_first_and_programs_of_one_name_are_told_apart() {
        let (quick, long, longer) = (end("0.01"), end("12.34"), end("100.60"));
        let lines = [
            "   Compiling outbox-core v0.1.0 (/w/outbox-core)",
            UNIT,
            "running 1 test",
            &quick,
            CORE,
            "running 3 tests",
            "test running ... ok",
            &long,
            NATS,
            "running 3 tests",
            &longer,
        ];
        let expected = [
            "/elsewhere/debug/deps/it-0c: 101 s",
            "target/debug/deps/it-0b: 12 s",
            "target/debug/deps/outbox_core-0a: 0 s",
        ];
        assert_eq!(listed(&lines), expected);
    }

    #[test]
    fn a_name_that_comes_late_or_early_counts_for_its_own_program() {
        let (first, second) = (end("2.00"), end("9.00"));
        let late = ["running 1 test", CORE, &first, "running 1 test", NATS, &second];
        let expected = ["/elsewhere/debug/deps/it-0c: 9 s", "target/debug/deps/it-0b: 2 s"];
        assert_eq!(listed(&late), expected);
        let early = [CORE, "running 1 test", NATS, &first, "running 1 test", &second];
        assert_eq!(listed(&early), expected);
    }

    /// Those that can be compiled together run first.
    #[test]
    fn both_parts_of_the_documentation_count() {
        let (first, second) = (end("2.00"), end("9.00"));
        let both = [
            "   Doc-tests outbox_core",
            "running 1 test",
            &first,
            "running 1 test",
            &second,
        ];
        assert_eq!(listed(&both), ["documentation of outbox_core: 11 s"]);
    }

    #[test]
    fn a_program_without_a_harness_gives_its_name_to_no_other() {
        let time = end("2.00");
        let lines = [UNIT, CORE, "running 1 test", &time];
        assert_eq!(listed(&lines), ["target/debug/deps/it-0b: 2 s"]);
    }

    #[test]
    fn no_more_than_ten_are_listed() {
        let mut durations = Durations::default();
        for number in 0..20 {
            durations.read_cargo(&format!("Running tests/it/main.rs (it-{number})"));
            durations.read("running 1 test");
            durations.read(&end(&format!("{number}.00")));
        }
        let lines = durations.lines(|program| Some(format!("crate of {program}")));
        assert_eq!(lines.len(), LISTED_MAX);
        assert_eq!(lines[0], "crate of it-19: 19 s");
    }

    #[test]
    fn the_crate_of_a_program_is_read_from_the_list_of_its_sources() {
        let listed = "/w/target/debug/deps/it-0b.d: /w/clippy.toml outbox-core/tests/it/main.rs outbox-core/tests/it/relay.rs\n";
        assert_eq!(main_source(listed), Some("outbox-core/tests/it/main.rs"));
        assert_eq!(main_source(""), None);
    }

    #[test]
    fn other_lines_have_no_time() {
        assert_eq!(seconds(&end("0.50")), Some(0.5));
        assert_eq!(seconds("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(seconds("  test result: ok. 3 passed; finished in 1.00s"), None);
        assert_eq!(program("   Compiling outbox v0.1.0 (/w/outbox)"), None);
        assert_eq!(program("     Running `target/debug/outbox (1)`"), None);
        assert!(!is_begin("running out of room"));
    }
}

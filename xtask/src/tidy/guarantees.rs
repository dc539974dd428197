//! Checks that the tests named in GUARANTEES.md exist, and lists them for `cargo xtask proofs`.
//!
//! Whether a test proves its claim is for reviewers. A test is found by its name in a source file:
//! a test that no longer runs is unused code, which clippy refuses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::workspace;

const DOCUMENT: &str = "GUARANTEES.md";

/// The header of a table of claims. The last column names tests in backticks.
const COLUMNS: &str = "| Claim | Where it holds | Proof |";

/// A row of a table of claims.
#[derive(Debug)]
struct Claim<'a> {
    /// From 1.
    line: usize,
    promise: &'a str,
    tests: Vec<&'a str>,
}

/// `cargo xtask proofs`: prints the tests of each promise, with their files.
pub(crate) fn print() -> Result<ExitCode> {
    let root = workspace::root();
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let sources = Sources::read(&root, &super::files(&root)?);
    let mut promise = "";
    for claim in claims(&text) {
        if claim.promise != promise {
            promise = claim.promise;
            println!("\n{promise}\n");
        }
        for test in claim.tests {
            println!("{test}: {}", sources.find(test).join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One sentence for each claim without a test, and for each test that does not exist.
pub(super) fn problems(root: &Path, files: &[String]) -> Vec<String> {
    let text = fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    check(&text, &Sources::read(root, files))
}

fn check(text: &str, sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    for Claim { line, tests, .. } in claims(text) {
        if tests.is_empty() {
            problems.push(format!("{DOCUMENT}:{line}: this claim names no test"));
        }
        let missing = tests.iter().filter(|test| sources.find(test).is_empty());
        problems.extend(missing.map(|test| format!("{DOCUMENT}:{line}: there is no test `{test}`")));
    }
    problems
}

fn claims(text: &str) -> Vec<Claim<'_>> {
    let (mut claims, mut promise, mut in_table) = (Vec::new(), "", false);
    for (line, text) in (1..).zip(text.lines()) {
        promise = text.strip_prefix("## ").unwrap_or(promise);
        in_table = text == COLUMNS || in_table && text.starts_with('|');
        if in_table && text != COLUMNS && !text.starts_with("|---") {
            let proof = text.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            let tests = proof.split('`').skip(1).step_by(2).collect();
            claims.push(Claim { line, promise, tests });
        }
    }
    claims
}

/// The identifiers of each source file, its path included.
#[derive(Debug, Default)]
struct Sources(Vec<(String, BTreeSet<String>)>);

impl Sources {
    fn read(root: &Path, files: &[String]) -> Self {
        let mut sources = Self::default();
        let is_wanted = |path: &&String| path.ends_with(".rs") && !path.starts_with("xtask/");
        for path in files.iter().filter(is_wanted) {
            sources.add(path, &fs::read_to_string(root.join(path)).unwrap_or_default());
        }
        sources
    }

    fn add(&mut self, path: &str, source: &str) {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = code.flat_map(|line| line.split(|letter| !is_part(letter)));
        let of_path = path.trim_end_matches(".rs").split('/');
        let words = words.chain(of_path).filter(|word| !word.is_empty());
        self.0.push((path.to_owned(), words.map(str::to_owned).collect()));
    }

    /// The files that have all parts of a name such as `module::test`.
    fn find(&self, test: &str) -> Vec<&str> {
        let has_all = |words: &BTreeSet<String>| test.split("::").all(|part| words.contains(part));
        let found = self.0.iter().filter(|(_, words)| has_all(words));
        found.map(|(path, _)| path.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## G1\n\n| Claim | Where it holds | Proof |\n|---|---|---|\n";

    fn problems_of(rows: &str) -> Vec<String> {
        let mut sources = Sources::default();
        sources.add("outbox/tests/it/relay.rs", "// gone\nfn lost() {}\n");
        sources.add("outbox/tests/ui/refused.rs", "fn main() {}\n");
        check(&format!("{TABLE}{rows}\n\n| Other | `no_test` |\n"), &sources)
    }

    #[test]
    fn named_tests_exist() {
        let rows = "| a | b | `lost`, `relay::lost` |\n| c | d | `refused` |";
        assert_eq!(problems_of(rows), Vec::<String>::new());
        let gone = ["GUARANTEES.md:5: there is no test `gone`"];
        assert_eq!(problems_of("| a | b | `gone` |"), gone);
        let elsewhere = ["GUARANTEES.md:5: there is no test `store::lost`"];
        assert_eq!(problems_of("| a | b | `store::lost` |"), elsewhere);
    }

    #[test]
    fn claim_names_a_test() {
        let expected = ["GUARANTEES.md:5: this claim names no test"];
        assert_eq!(problems_of("| a | b | by design |"), expected);
    }
}

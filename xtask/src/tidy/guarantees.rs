//! Checks that the modules named in GUARANTEES.md hold tests, and lists these tests for
//! `cargo xtask proofs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::workspace;

const DOCUMENT: &str = "GUARANTEES.md";

const COLUMNS: &str = "| Claim | Where | Proof |";

pub(crate) fn print() -> Result<ExitCode> {
    let root = workspace::root();
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let sources = read(&root, &super::files(&root)?);
    for (_, claim, modules) in claims(&text) {
        println!("\n{}", claim.trim());
        for (path, tests) in modules.iter().flat_map(|module| within(module, &sources)) {
            println!("    {path}: {}", tests.join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn problems(root: &Path, files: &[String]) -> Vec<String> {
    let text = fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    check(&text, &read(root, files))
}

fn check(text: &str, sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    for (line, _, modules) in claims(text) {
        if modules.is_empty() {
            problems.push(format!("{DOCUMENT}:{line}: this claim names no test module"));
        }
        let empty = modules.iter().filter(|module| within(module, sources).is_empty());
        problems.extend(empty.map(|module| format!("{DOCUMENT}:{line}: `{module}` holds no test")));
    }
    problems
}

fn claims(text: &str) -> Vec<(usize, &str, Vec<String>)> {
    let mut in_table = false;
    let rows = (1..).zip(text.lines()).filter(|(_, row)| {
        in_table = *row == COLUMNS || in_table && row.starts_with('|');
        in_table && *row != COLUMNS && !row.starts_with("|---")
    });
    rows.map(|(line, row)| {
        let (claim, proof) = row[1..].rsplit_once(" | ").unwrap_or_default();
        let proofs = proof.split('`').skip(1).step_by(2);
        (line, claim, proofs.flat_map(modules).collect())
    })
    .collect()
}

fn modules(proof: &str) -> Vec<String> {
    let proof = proof.trim_end_matches('}');
    let (parent, names) = proof.split_once('{').unwrap_or(("", proof));
    names.split(", ").map(|name| format!("{parent}{name}")).collect()
}

type Sources = BTreeMap<String, Vec<String>>;

fn read(root: &Path, files: &[String]) -> Sources {
    let text = |path: &String| fs::read_to_string(root.join(path)).unwrap_or_default();
    let sources = files.iter().filter(|path| path.ends_with(".rs"));
    let sources = sources.map(|path| (path.clone(), tests(path, &text(path))));
    sources.filter(|(_, tests)| !tests.is_empty()).collect()
}

/// Functions with a test attribute. In a suite or a test file, a function without an attribute
/// counts as a test if no line of the file calls it: a macro runs it on each back end.
pub(super) fn tests(path: &str, text: &str) -> Vec<String> {
    let is_suite = path.contains("/tests") || path.contains("/conformance/");
    let lines = text.lines().zip(text.lines().skip(1));
    let tests = lines.filter_map(|(above, line)| {
        let name = line.split_once("fn ")?.1.split(['(', '<']).next()?;
        let is_attributed = above.contains("test]") || above.contains("test(");
        let is_test = is_attributed && !name.starts_with('$');
        let is_free =
            is_suite && !above.ends_with(']') && line.trim_start_matches("pub ").starts_with("async fn");
        let is_called = || text.matches(&format!("{name}(")).count() > 1;
        (is_test || is_free && !is_called()).then(|| name.to_owned())
    });
    tests.collect()
}

fn within<'a>(module: &str, sources: &'a Sources) -> Vec<(&'a String, &'a Vec<String>)> {
    let folder = format!("{module}::").replace("::", "/");
    let is_within = |path: &str| {
        let module = path.replace("/src/", "/").replace("/tests/it/", "/");
        let module = module.replace("/mod.rs", "/").replace(".rs", "/");
        module.trim_start_matches("outbox-").starts_with(&folder)
    };
    sources.iter().filter(|(path, _)| is_within(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "macro!(kept);\nasync fn kept() { open() }\nasync fn open() {}\n\
                        #[handler]\nasync fn take() {}\n    #[test]\n    fn told() {}\n";

    fn problems_of(proof: &str) -> Vec<String> {
        let files = ["outbox-nats/tests/it/relay/mod.rs", "outbox/src/store.rs"];
        let sources = files.map(|path| (path.to_owned(), tests(path, FILE))).into();
        let table = format!("{COLUMNS}\n|---|---|---|\n| a | b | {proof} |\n\n| Other | `none` |\n");
        check(&table, &sources)
    }

    #[test]
    fn named_modules_hold_tests() {
        assert!(problems_of("`nats::{relay, relay}`, `outbox::store`, `outbox`").is_empty());
        let expected = "GUARANTEES.md:3: `nats::rel` holds no test";
        assert_eq!(problems_of("`nats::{relay, rel}`"), [expected]);
        let expected = "GUARANTEES.md:3: this claim names no test module";
        assert_eq!(problems_of("by design"), [expected]);
    }

    #[test]
    fn helpers_are_no_tests() {
        assert_eq!(tests("outbox/tests/it/relay.rs", FILE), ["kept", "told"]);
        assert_eq!(tests("outbox/src/relay.rs", FILE), ["told"]);
    }
}

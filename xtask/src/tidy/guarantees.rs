//! Checks that each proof named in GUARANTEES.md exists: a promise whose test was renamed away is not proven.
//!
//! It understands links, `[…](folder/file.rs#test_name)` and `[…](file.md)`, and code, `folder/file.rs::test_name`.
//! Reviewers judge whether the test proves the promise.

use std::fs;
use std::path::Path;

/// One sentence for each proof that does not exist.
pub(super) fn problems(document: &str, text: &str, root: &Path) -> Vec<String> {
    let numbered = text.lines().enumerate();
    let references = numbered.flat_map(|(index, line)| {
        links(line)
            .chain(code(line))
            .map(move |reference| (index + 1, reference))
            .collect::<Vec<_>>()
    });
    references
        .filter_map(|(line, reference)| {
            problem(&reference, root).map(|problem| format!("{document}:{line}: {problem}"))
        })
        .collect()
}

#[derive(Debug, Eq, PartialEq)]
struct Reference<'a> {
    path: &'a str,
    /// The name of a test, if one is named.
    test: Option<&'a str>,
}

fn links(line: &str) -> impl Iterator<Item = Reference<'_>> {
    let targets = line
        .match_indices("](")
        .filter_map(|(at, opening)| line[at + opening.len()..].split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| {
            let (path, fragment) = target
                .split_once('#')
                .map_or((target, None), |(path, name)| (path, Some(name)));
            // Elsewhere a fragment is a heading, which renders to a harmless jump to the top if it is gone.
            let test = fragment.filter(|_| path.ends_with(".rs"));
            Reference { path, test }
        })
}

fn code(line: &str) -> impl Iterator<Item = Reference<'_>> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter_map(|span| {
        let (path, name) = span.split_once(".rs::")?;
        let path = &span[..path.len() + ".rs".len()];
        // Modules inside the file are for the reader; the function is what must exist.
        Some(Reference {
            path,
            test: name.rsplit("::").next(),
        })
    })
}

fn problem(reference: &Reference<'_>, root: &Path) -> Option<String> {
    let Reference { path, test } = reference;
    let file = root.join(path);
    if !file.exists() {
        return Some(format!(
            "{path} does not exist; name the file that proves this promise"
        ));
    }
    let test = (*test)?;
    let source = fs::read_to_string(file).unwrap_or_default();
    (!has_function(&source, test))
        .then(|| format!("{path} has no `fn {test}`; name the test that proves this promise, or restore it"))
}

fn has_function(source: &str, name: &str) -> bool {
    let is_part_of_name = |character: char| character.is_alphanumeric() || character == '_';
    source
        .match_indices(&format!("fn {name}"))
        .any(|(at, found)| !source[at + found.len()..].starts_with(is_part_of_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        let tests = root.path().join("outbox-core/tests/it");
        fs::create_dir_all(&tests).unwrap();
        fs::write(tests.join("relay.rs"), "#[test]\nfn nothing_is_lost() {}\n").unwrap();
        let problems = problems("GUARANTEES.md", text, root.path());
        match expected {
            None => assert_eq!(problems, Vec::<String>::new()),
            Some(part) => {
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains(part), "{problems:?}");
            }
        }
    }

    #[test]
    fn proofs_must_exist() {
        check("G1 [proof](outbox-core/tests/it/relay.rs#nothing_is_lost)", None);
        check(
            "G1 [proof](outbox-core/tests/it/relay.rs#nothing_is)",
            Some("GUARANTEES.md:1: "),
        );
        check(
            "text\n[proof](outbox-core/tests/it/gone.rs#nothing_is_lost)",
            Some("GUARANTEES.md:2: "),
        );
        check("G1 `outbox-core/tests/it/relay.rs::nothing_is_lost`", None);
        check("G1 `outbox-core/tests/it/relay.rs::inner::nothing_is_lost`", None);
        check(
            "G1 `outbox-core/tests/it/relay.rs::renamed`",
            Some("has no `fn renamed`"),
        );
    }

    #[test]
    fn other_references_are_left_alone() {
        check(
            "see [above](#promises), [there](https://example.com/a.rs#b) and `std::fs`",
            None,
        );
        check("see [the folder](outbox-core/tests)", None);
    }
}

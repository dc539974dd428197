//! Checks GUARANTEES.md against the tests that it names, and writes docs/proofs.md, which links to them.
//!
//! Whether a test proves its claim is for reviewers. Not here: reading the document, see [`document`]; finding tests, see [`index`].

mod document;
mod index;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use self::document::Promise;
use self::index::{Found, Index};

const DOCUMENT: &str = "GUARANTEES.md";
const PROOFS: &str = "docs/proofs.md";

const HEADER: &str = "# Proofs\n\n\
    Where the tests are that [GUARANTEES.md](../GUARANTEES.md) names. This file is generated: `OUTBOX_BLESS=1 cargo xtask tidy` writes it anew.\n";

/// One sentence for each proof that cannot be found, and for each promise in another form than the others.
///
/// With `bless`, writes docs/proofs.md; else a stale one is a problem.
pub(super) fn problems(root: &Path, files: &[String], bless: bool) -> Result<Vec<String>> {
    let Ok(text) = fs::read_to_string(root.join(DOCUMENT)) else {
        return Ok(vec![format!("{DOCUMENT} does not exist; it has the promises")]);
    };
    let mut index = Index::default();
    for path in files.iter().filter(|path| path.ends_with(".rs")) {
        // A file may be deleted and not yet committed.
        if let Ok(source) = fs::read_to_string(root.join(path)) {
            index.add(path, &source);
        }
    }
    let (mut problems, proofs) = check(&text, &index);
    problems.extend(missing_links(&text, root));
    let path = root.join(PROOFS);
    if bless {
        fs::write(&path, proofs).with_context(|| format!("cannot write {}", path.display()))?;
    } else if fs::read_to_string(&path).ok().as_ref() != Some(&proofs) {
        problems.push(format!(
            "{PROOFS} is out of date; write it with OUTBOX_BLESS=1 cargo xtask tidy, and review the difference"
        ));
    }
    Ok(problems)
}

/// What is wrong with the document, and the text of docs/proofs.md.
fn check(text: &str, index: &Index) -> (Vec<String>, String) {
    let (promises, mut problems) = document::promises(text);
    let mut proofs = HEADER.to_owned();
    for Promise { title, claims } in &promises {
        let _ = write!(proofs, "\n## {title}\n\n");
        let names = claims
            .iter()
            .flat_map(|claim| claim.proofs.iter().map(|proof| (claim.line, proof)));
        let mut listed = Vec::new();
        for (line, name) in names {
            match index.find(name) {
                Found::One(path) if !listed.contains(&name) => {
                    let _ = writeln!(proofs, "- [`{name}`](../{path})");
                    listed.push(name);
                }
                Found::One(_) => {}
                Found::Nothing => problems.push(format!(
                    "{DOCUMENT}:{line}: there is no test `{name}`; name the test that proves this claim, or restore it"
                )),
                Found::Several(places) => problems.push(format!(
                    "{DOCUMENT}:{line}: there are several tests `{name}` ({}); put its module before it",
                    places.join(", ")
                )),
            }
        }
    }
    (problems, proofs)
}

/// Links to files of the repository that are not there.
fn missing_links(text: &str, root: &Path) -> Vec<String> {
    let numbered = text.lines().enumerate();
    let missing = numbered.flat_map(|(index, line)| {
        let targets = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next());
        let missing = targets
            .filter(|target| !target.is_empty() && !target.contains("://") && !root.join(target).exists());
        missing
            .map(move |target| format!("{DOCUMENT}:{}: {target} does not exist; mend the link", index + 1))
            .collect::<Vec<_>>()
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Guarantees\n\nIntroduction.\n\n## G1 Atomic\n\nOne. Two.\n\n**Not promised:** three.\n\n\
        | Claim | Where it holds | Proof |\n|---|---|---|\n| nothing is lost | memory | `nothing_is_lost` |\n";

    fn index() -> Index {
        let mut index = Index::default();
        index.add(
            "outbox-core/tests/it/relay.rs",
            "#[test]\nfn nothing_is_lost() {}\n",
        );
        index
    }

    #[track_caller]
    fn check_problem(text: &str, expected: &str) {
        let (problems, _) = check(text, &index());
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    }

    #[test]
    fn proofs_are_listed_by_promise() {
        let (problems, proofs) = check(TEXT, &index());
        assert_eq!(problems, Vec::<String>::new());
        let expected = "## G1 Atomic\n\n- [`nothing_is_lost`](../outbox-core/tests/it/relay.rs)\n";
        assert!(proofs.ends_with(expected), "{proofs}");
    }

    #[test]
    fn proofs_must_exist() {
        check_problem(
            &TEXT.replace("`nothing_is_lost`", "`renamed`"),
            "GUARANTEES.md:13: there is no test `renamed`",
        );
    }

    #[test]
    fn a_name_that_two_tests_have_needs_its_module() {
        let mut index = index();
        index.add(
            "outbox-core/tests/it/drain.rs",
            "#[test]\nfn nothing_is_lost() {}\n",
        );
        let (problems, _) = check(TEXT, &index);
        assert!(problems[0].contains("put its module before it"), "{problems:?}");
        let (problems, _) = check(&TEXT.replace("`nothing", "`drain::nothing"), &index);
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn a_stale_list_is_a_problem_and_is_written_on_request() {
        let root = tempfile::tempdir().unwrap();
        let source = "outbox-core/tests/it/relay.rs".to_owned();
        for (path, text) in [(DOCUMENT, TEXT), (&source, "#[test]\nfn nothing_is_lost() {}\n")] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(root.path().join("docs")).unwrap();
        let files = [source];
        let stale = problems(root.path(), &files, false).unwrap();
        assert!(stale[0].contains("out of date") && stale.len() == 1, "{stale:?}");
        assert_eq!(problems(root.path(), &files, true).unwrap(), Vec::<String>::new());
        assert_eq!(
            problems(root.path(), &files, false).unwrap(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn links_must_lead_somewhere() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("there.md"), "").unwrap();
        let text = "[a](there.md#part) [b](https://example.com) [c](#below)\n[d](gone.md)";
        let expected = vec!["GUARANTEES.md:2: gone.md does not exist; mend the link".to_owned()];
        assert_eq!(missing_links(text, root.path()), expected);
    }
}

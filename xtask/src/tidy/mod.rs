//! `cargo xtask tidy`: our own rules about files, which no other tool knows.
//!
//! Each rule is a pure function of a path and a text, and says in one sentence how to follow it. The files are those
//! that git knows or would add, so build output and local notes are left out.

mod guarantees;
mod tables;

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::bench::draw;
use crate::graph;
use crate::workspace::Workspace;

/// A file with more lines than this has more than one subject.
const LINES_MAX: usize = 500;

/// The variable that has generated files written anew, here as in the tests.
const BLESS: &str = "OUTBOX_BLESS";

/// The keys that every crate inherits from the workspace.
const INHERITED: [&str; 4] = ["version", "edition", "rust-version", "license"];

/// Folders that exist on one machine only. Written in two parts, since this file is checked too.
const LOCAL_FOLDERS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let mut problems = problems(&workspace.root)?;
    problems.extend(graph::problems(&workspace.packages));
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("tidy");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} problems", problems.len());
    Ok(ExitCode::FAILURE)
}

/// One sentence for each broken rule. With [`BLESS`] set, generated files are written anew.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let bless = env::var_os(BLESS).is_some();
    let files = files(root)?;
    let mut problems = Vec::new();
    for path in &files {
        // A file may be deleted and not yet committed, or be no text at all.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            problems.extend(problems_of(path, &text));
        }
    }
    problems.extend(guarantees::problems(root, &files, bless)?);
    problems.extend(draw::problems(root, bless)?);
    Ok(problems)
}

fn problems_of(path: &str, text: &str) -> Vec<String> {
    let rules = [header, length, inheritance, example];
    let mut problems: Vec<String> = rules.iter().filter_map(|rule| rule(path, text)).collect();
    problems.extend(local_paths(path, text));
    problems.extend(tables::problems(path, text));
    problems
}

/// Paths relative to the root, with slashes.
fn files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--deduplicate",
        ])
        .current_dir(root)
        .output()
        .context("cannot run git, which knows the files to check; install it")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("git cannot list the files; is this a clone?\n{}", stderr.trim());
    }
    let names = output
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}

/// Each source file states its job first.
fn header(path: &str, text: &str) -> Option<String> {
    let is_source = is_rust(path) && path.contains("/src/") && !is_test_material(path);
    (is_source && !text.starts_with("//!")).then(|| {
        format!("{path}: has no module header; start it with `//!`: its job in one line, and its invariant")
    })
}

fn length(path: &str, text: &str) -> Option<String> {
    let is_checked =
        (path.starts_with("outbox") || path.starts_with("stress/") || path.starts_with("xtask/"))
            && is_rust(path)
            && path.contains("/src/")
            && !is_test_material(path);
    let lines = text.lines().count();
    (is_checked && lines > LINES_MAX).then(|| {
        format!("{path}: has {lines} lines, more than {LINES_MAX}; find its two subjects and split it")
    })
}

/// A value that is not inherited is not true.
fn inheritance(path: &str, text: &str) -> Option<String> {
    let is_member = path.ends_with("/Cargo.toml") && path.matches('/').count() == 1;
    if !is_member {
        return None;
    }
    let keys = INHERITED
        .iter()
        .map(|key| ("package", *key))
        .chain([("lints", "")]);
    let missing: Vec<String> = keys
        .filter(|(table, key)| !inherits(text, table, key))
        .map(wanted_line)
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{path}: does not inherit from the workspace; add {}",
            missing.join(", ")
        )
    })
}

fn wanted_line((table, key): (&str, &str)) -> String {
    if key.is_empty() {
        format!("`workspace = true` to [{table}]")
    } else {
        format!("`{key}.workspace = true` to [{table}]")
    }
}

/// Whether a table of a manifest says `key.workspace = true`. A parser for the few forms cargo accepts is enough.
fn inherits(manifest: &str, table: &str, key: &str) -> bool {
    let forms = if key.is_empty() {
        ["workspace=true".to_owned(), "workspace=true".to_owned()]
    } else {
        [
            format!("{key}.workspace=true"),
            format!("{key}={{workspace=true}}"),
        ]
    };
    let mut is_inside = false;
    manifest.lines().any(|line| {
        let line: String = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        if line.starts_with('[') {
            is_inside = line == format!("[{table}]");
        }
        is_inside && forms.contains(&line)
    })
}

/// A reader of an example wants to run it first.
fn example(path: &str, text: &str) -> Option<String> {
    let (name, kind) = if let Some(name) = path.strip_prefix("examples/examples/") {
        (name, "example")
    } else {
        (path.strip_prefix("examples/src/bin/")?, "bin")
    };
    let name = name
        .strip_suffix(".rs")
        .or_else(|| name.strip_suffix("/main.rs"))?;
    let is_numbered = name.starts_with(|character: char| character.is_ascii_digit()) && !name.contains('/');
    let first = text.lines().next().unwrap_or_default();
    let says_how = first.starts_with("//!") && first.contains("cargo ") && first.contains(name);
    (is_numbered && !says_how).then(|| {
        format!("{path}: does not say how to run it; start it with ``//! `cargo run -p examples --{kind} {name}` …``")
    })
}

/// Paths that exist only on one machine.
fn local_paths(path: &str, text: &str) -> Vec<String> {
    let numbered = text.lines().enumerate();
    let found = numbered.filter_map(|(index, line)| local_folder(line).map(|folder| (index + 1, folder)));
    found
        .map(|(line, folder)| {
            format!("{path}:{line}: names a folder of one machine ({folder}…); use a path relative to the repository")
        })
        .collect()
}

fn local_folder(line: &str) -> Option<&'static str> {
    LOCAL_FOLDERS.into_iter().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            // Part of a longer path or of an address, it is no folder at the top.
            let before = line[..at].chars().next_back();
            before.is_none_or(|character| !character.is_alphanumeric() && !"._-~*}>".contains(character))
        })
    })
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// The inputs and expected outputs of tests follow no rules.
fn is_test_material(path: &str) -> bool {
    path.contains("/tests/ui/") || path.contains("/golden/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[track_caller]
    fn check(path: &str, text: &str, expected: Option<&str>) {
        let problems = problems_of(path, text);
        match expected {
            None => assert_eq!(problems, Vec::<String>::new()),
            Some(part) => {
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains(part), "{problems:?}");
            }
        }
    }

    #[test]
    fn this_repository_is_tidy() {
        let problems = problems(&root()).unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn sources_start_with_a_header() {
        check("outbox-core/src/store.rs", "//! The seam.\n", None);
        check(
            "outbox-core/src/store.rs",
            "use std::fs;\n",
            Some("no module header"),
        );
        check("outbox-core/tests/ui/missing_name.rs", "struct A;\n", None);
    }

    #[test]
    fn sources_are_short() {
        let long = format!("//! Long.\n{}", "\n".repeat(LINES_MAX));
        check("xtask/src/tidy.rs", &long, Some("501 lines"));
        check("outbox-core/src/golden/long.rs", &long, None);
        check("outbox-core/tests/it/store.rs", &long, None);
    }

    #[test]
    fn crates_inherit() {
        let manifest = "[package]\nname = \"a\"\nversion.workspace = true\nedition = { workspace = true }\n\
            rust-version.workspace=true # One place.\nlicense.workspace = true\n\n[lints]\nworkspace = true\n";
        check("a/Cargo.toml", manifest, None);
        check(
            "a/Cargo.toml",
            &manifest.replace("[lints]", "[other]"),
            Some("add `workspace = true` to [lints]"),
        );
        let own = manifest.replace(
            "version.workspace = true\nedition",
            "version = \"1.0.0\"\nedition",
        );
        check(
            "a/Cargo.toml",
            &own,
            Some("add `version.workspace = true` to [package]"),
        );
        check("Cargo.toml", "[workspace]\n", None);
    }

    #[test]
    fn numbered_examples_say_how_to_run_them() {
        let path = "examples/examples/01_first.rs";
        check(
            path,
            "//! `cargo run -p examples --example 01_first` prints one event.\n",
            None,
        );
        check(path, "//! The first example.\n", Some("--example 01_first"));
        check(
            "examples/src/bin/02_second.rs",
            "//! The second.\n",
            Some("--bin 02_second"),
        );
        check("examples/src/bin/northwind.rs", "//! The demo.\n", None);
    }

    #[test]
    fn nothing_names_a_folder_of_one_machine() {
        for folder in LOCAL_FOLDERS {
            check(
                "README.md",
                &format!("see {folder}notes\n"),
                Some("README.md:1: names a folder"),
            );
            check(
                "README.md",
                &format!("`{folder}notes`\n"),
                Some("README.md:1: names a folder"),
            );
            check("README.md", &format!("https://example.com{folder}notes\n"), None);
            check("README.md", &format!("target{folder}\n"), None);
        }
    }
}

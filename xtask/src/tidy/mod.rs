//! `cargo xtask tidy`: rules for the files of this repository. Files ignored by git are not
//! checked.

pub(crate) mod guarantees;
mod language;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use self::language::Language;
use crate::graph;
use crate::workspace::Workspace;

const LINES_MAX: usize = 500;

const README_BYTES_MAX: usize = 6 * 1024;
const README_COLUMNS_MAX: usize = 120;

const INHERITED: [&str; 4] = ["version", "edition", "rust-version", "license"];

/// Folders that exist on one machine only. The strings are split, because this lint also checks its
/// own file.
const LOCAL_FOLDERS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

/// Markers of unfinished work. The strings are split, because this lint also checks its own file.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Calls that match a literal in an error text. A literal of several words counts as part of a
/// message.
const TEXT_MATCHES: [&str; 8] = [
    ".contains(\"",
    ".starts_with(\"",
    ".ends_with(\"",
    ".split_once(\"",
    ".rsplit_once(\"",
    ".strip_prefix(\"",
    ".strip_suffix(\"",
    ".find(\"",
];

const FOREIGN_TEXTS: [&str; 7] = [
    "outbox-cli/src/config/file.rs",
    "outbox-core/src/failure.rs",
    "outbox-core/src/payload/reason.rs",
    "outbox-inbox/src/dedup/constraint.rs",
    "outbox-nats/src/connect/denials.rs",
    "outbox-sea-orm/src/error/answer.rs",
    "outbox-sea-orm/src/write/many/rows.rs",
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

pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let files = files(root)?;
    let (mut problems, mut language) = (Vec::new(), Language::default());
    for path in &files {
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            problems.extend(problems_of(path, &text));
            language.read(path, &text);
        }
    }
    problems.extend(language.problems());
    problems.extend(guarantees::problems(root, &files));
    Ok(problems)
}

fn files(root: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    command.args(["ls-files", "-z", "--cached", "--others"]);
    command.args(["--exclude-standard", "--deduplicate"]);
    let output = command.current_dir(root).output().context("cannot run git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git cannot list the files: {stderr}");
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = names.split('\0').filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

fn problems_of(path: &str, text: &str) -> Vec<String> {
    let rules = [header, length, readme, inheritance, example];
    let mut problems: Vec<String> = rules.iter().filter_map(|rule| rule(path, text)).collect();
    let is_code = path.ends_with(".rs");
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(folder) = local_folder(line) {
            problems.push(format!("{path}:{number}: contains a local folder ({folder}…)"));
        }
        let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        if is_code && words.any(|word| UNFINISHED.contains(&word)) {
            problems.push(format!("{path}:{number}: marks unfinished work; finish it"));
        }
        let columns = line.chars().count();
        if path == "README.md" && columns > README_COLUMNS_MAX {
            problems.push(format!(
                "{path}:{number}: has {columns} columns, more than {README_COLUMNS_MAX}"
            ));
        }
    }
    problems.extend(matched_texts(path, text));
    if path.ends_with(".md") {
        problems.extend(tables(path, text));
    }
    problems
}

/// Rejects table rows that are longer than their header, because renderers drop the extra cells.
fn tables(path: &str, text: &str) -> Vec<String> {
    let (mut problems, mut header) = (Vec::new(), None);
    for (number, line) in (1..).zip(text.lines()) {
        let row = line.trim();
        if !row.starts_with('|') {
            header = None;
            continue;
        }
        let cells = row.replace("\\|", "").matches('|').count();
        let expected = *header.get_or_insert(cells);
        if cells != expected || !row.ends_with('|') {
            problems.push(format!(
                "{path}:{number}: the row does not have the cells of its header"
            ));
        }
    }
    problems
}

fn is_source(path: &str) -> bool {
    let is_material = path.contains("/tests/ui/") || path.contains("/golden/");
    path.ends_with(".rs") && path.contains("/src/") && !is_material
}

fn header(path: &str, text: &str) -> Option<String> {
    let is_missing = is_source(path) && !text.starts_with("//!");
    is_missing.then(|| format!("{path}: has no module header; start it with `//!` and its job in one line"))
}

fn length(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let is_long = is_source(path) && !path.starts_with("examples/") && lines > LINES_MAX;
    is_long.then(|| format!("{path}: has {lines} lines, more than {LINES_MAX}; split it by subject"))
}

fn readme(path: &str, text: &str) -> Option<String> {
    let bytes = text.len();
    let is_long = path == "README.md" && bytes > README_BYTES_MAX;
    is_long.then(|| format!("{path}: has {bytes} bytes, more than {README_BYTES_MAX}"))
}

fn inheritance(path: &str, text: &str) -> Option<String> {
    if !path.ends_with("/Cargo.toml") || path.matches('/').count() != 1 {
        return None;
    }
    let has = |wanted: &str| text.lines().any(|line| line == wanted);
    let keys = INHERITED.map(|key| format!("{key}.workspace = true"));
    let missing = keys.into_iter().find(|line| !has(line));
    let missing = missing.or((!text.contains("[lints]\nworkspace = true\n")).then(|| "[lints]".to_owned()));
    missing.map(|line| format!("{path}: does not inherit from the workspace: {line}"))
}

/// Rejects code that matches texts instead of types. Only a few files match texts of servers,
/// drivers and other libraries.
fn matched_texts(path: &str, text: &str) -> Vec<String> {
    let is_checked = is_source(path) && path.starts_with("outbox") && !path.starts_with("outbox-testing/");
    if !is_checked || path.contains("test") || path.contains("/plans") || FOREIGN_TEXTS.contains(&path) {
        return Vec::new();
    }
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let matches_text = |line: &str| {
        TEXT_MATCHES.iter().any(|call| {
            let mut literals = line.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            literals.any(|literal| literal.trim().contains(' '))
        })
    };
    let lines = (1..).zip(code.lines()).filter(|(_, line)| matches_text(line));
    lines
        .map(|(number, _)| {
            format!(
                "{path}:{number}: matches words of a text; carry a type, or list the file with foreign texts"
            )
        })
        .collect()
}

fn example(path: &str, text: &str) -> Option<String> {
    let name = path.strip_prefix("examples/examples/")?.strip_suffix(".rs")?;
    let first = text.lines().next()?;
    let is_missing = name.starts_with(|first: char| first.is_ascii_digit()) && !first.contains(name);
    is_missing.then(|| format!("{path}: start it with ``//! `cargo run -p examples --example {name}` …``"))
}

/// Finds the path of a top-level folder. A match inside a longer path or URL does not count.
fn local_folder(line: &str) -> Option<&'static str> {
    let is_part = |before: char| before.is_alphanumeric() || "._-~*}>".contains(before);
    LOCAL_FOLDERS.into_iter().find(|folder| {
        let mut places = line.match_indices(folder);
        places.any(|(at, _)| !line[..at].ends_with(is_part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_cells_of_their_header() {
        let table = "| a | b |\n|---|---|\n| `x \\| y` | 2 |\n\n| c |\n|---|\n| 3 |\n";
        assert_eq!(tables("a.md", table), Vec::<String>::new());
        for torn in ["| 1 | 2 | 3 |", "| 1 |", "| 1 | 2"] {
            let text = format!("| a | b |\n|---|---|\n{torn}\n");
            assert_eq!(tables("a.md", &text).len(), 1, "{torn}");
        }
    }
    use crate::workspace::root;

    #[track_caller]
    fn check(path: &str, text: &str, expected: Option<&str>) {
        let problems = problems_of(path, text);
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{problems:?}");
        assert!(
            problems
                .iter()
                .all(|problem| problem.contains(expected.unwrap_or_default())),
            "{problems:?}"
        );
    }

    #[test]
    fn this_repository_is_tidy() {
        let problems = problems(&root()).unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn sources_are_short_finished_and_have_a_header() {
        let path = "outbox-core/src/store.rs";
        check(path, "//! The seam.\n", None);
        check(path, "use std::fs;\n", Some("no module header"));
        check("outbox-core/tests/ui/missing_name.rs", "struct A;\n", None);
        let long = format!("//! Long.\n{}", "\n".repeat(LINES_MAX));
        check(path, &long, Some("501 lines"));
        check("outbox-core/tests/it/store.rs", &long, None);
        for marker in UNFINISHED {
            check(
                path,
                &format!("//! A.\n// {marker}: b\n"),
                Some("store.rs:2: marks"),
            );
        }
    }

    #[test]
    fn code_matches_no_words_of_a_message() {
        let code = |call: &str| format!("//! A.\nfn f(text: &str) -> bool {{ text.{call} }}\n");
        let path = "outbox-cli/src/admin/words.rs";
        check(
            path,
            &code("contains(\"as table owner\")"),
            Some("words.rs:2: matches"),
        );
        check(path, &code("starts_with(\"inbox_\")"), None);
        check(FOREIGN_TEXTS[0], &code("contains(\"no such table\")"), None);
        let test = format!(
            "//! A.\n#[cfg(test)]\nmod tests {{\n{}",
            code("contains(\"a b\")")
        );
        check(path, &test, None);
    }

    #[test]
    fn readme_is_short_and_narrow() {
        check("README.md", &"x\n".repeat(README_BYTES_MAX / 2), None);
        check("README.md", &"x\n".repeat(README_BYTES_MAX), Some("bytes"));
        check("README.md", &"x".repeat(README_COLUMNS_MAX + 1), Some("columns"));
    }

    #[test]
    fn crates_inherit() {
        let manifest = "[package]\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
            license.workspace = true\n\n[lints]\nworkspace = true\n";
        check("a/Cargo.toml", manifest, None);
        let own = manifest.replace("edition.workspace = true", "edition = \"2024\"");
        check("a/Cargo.toml", &own, Some("edition.workspace = true"));
        check(
            "a/Cargo.toml",
            &manifest.replace("[lints]", "[x]"),
            Some("[lints]"),
        );
    }

    #[test]
    fn numbered_examples_start_with_their_command() {
        let path = "examples/examples/01_first.rs";
        check(path, "//! `cargo run -p examples --example 01_first`\n", None);
        check(path, "//! The first example.\n", Some("--example 01_first"));
    }

    #[test]
    fn local_folders_are_rejected() {
        for folder in LOCAL_FOLDERS {
            check(
                "a.md",
                &format!("see `{folder}notes`\n"),
                Some("a.md:1: contains"),
            );
            check("a.md", &format!("https://example.com{folder}notes\n"), None);
            check("a.md", &format!("target{folder}\n"), None);
        }
    }
}

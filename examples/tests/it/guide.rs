//! Checks the guide: its Rust code is quoted from the examples, and its links lead to existing
//! targets.
//!
//! A ```` ```rust ```` block of `docs/guide/*.md` follows a line `<!-- examples/examples/NAME.rs
//! -->`, and its lines occur in that file in sequence. A line `// …` in the block replaces any
//! number of lines. Common indentation between two such lines does not count.

use std::fs;
use std::path::{Path, PathBuf};

const SKIP: &str = "// …";

const FREE: [&str; 5] = ["toml", "sh", "sql", "text", "mermaid"];

const MISTAKES: &str = "rust,ignore";

const OTHER_PAGES: [&str; 3] = ["README.md", "CONTRIBUTING.md", "docs/operations.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

struct Page {
    path: String,
    text: String,
}

fn page(path: String) -> Page {
    let text = read(&path).unwrap_or_else(|| panic!("{path} is missing; restore the file"));
    Page { path, text }
}

fn guide() -> Vec<Page> {
    let folder = root().join("docs/guide");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".md"))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no pages", folder.display());
    names
        .into_iter()
        .map(|name| page(format!("docs/guide/{name}")))
        .collect()
}

#[test]
fn guide_excerpts_are_code_of_the_examples() {
    let mut problems = Vec::new();
    for Page { path, text } in guide().into_iter().chain([page("README.md".to_owned())]) {
        let is_mistake = |block: &Block<'_>| path == "README.md" && block.info == MISTAKES;
        match blocks(&text) {
            Err(line) => problems.push(format!("{path}:{line}: this block has no end; close it with ```")),
            Ok(blocks) => {
                let checked = blocks.iter().filter(|block| !is_mistake(block));
                let found = checked.filter_map(|block| block_problem(block, read));
                problems.extend(found.map(|(line, problem)| format!("{path}:{line}: {problem}")));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn links_of_the_guide_lead_somewhere() {
    let others = OTHER_PAGES.map(|path| page(path.to_owned()));
    let mut problems = Vec::new();
    for Page { path, text } in guide().into_iter().chain(others) {
        for (line, target) in links(&text) {
            let problem = link_problem(&path, target, |path| root().join(path).exists(), read);
            problems.extend(problem.map(|problem| format!("{path}:{line}: {problem}")));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn the_glossary_stays_short() {
    let glossary = read("docs/guide/glossary.md").unwrap();
    let terms = glossary.lines().filter(|line| line.starts_with("**")).count();
    assert!(terms <= 40, "the glossary has {terms} terms; merge related terms");
}

/// CI has no Docker, so it does not run the README's Docker commands; a test runs example 16 on
/// CI's own servers instead.
#[test]
fn ci_runs_the_commands_of_the_readme() {
    let (readme, ci) = (read("README.md").unwrap(), read(".ci/run").unwrap());
    let blocks = blocks(&readme).unwrap();
    let lines = blocks
        .iter()
        .filter(|block| block.info == "sh")
        .flat_map(|block| &block.lines);
    let quoted = readme.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let commands = lines
        .copied()
        .chain(quoted)
        .map(|line| line.split('#').next().unwrap_or(line).trim());
    let commands: Vec<&str> = commands
        .filter(|command| command.starts_with("cargo ") && !command.contains("16_postgres_jetstream"))
        .collect();
    assert!(commands.len() >= 4, "{commands:?}");
    for command in commands {
        let runs = ci
            .lines()
            .any(|line| line.trim().strip_suffix(command).is_some_and(is_environment));
        assert!(
            runs,
            "`{command}` is in README.md and not in .ci/run; add the command there"
        );
    }
}

fn is_environment(text: &str) -> bool {
    text.split_whitespace().all(|word| word.contains('='))
}

struct Block<'a> {
    line: usize,
    info: &'a str,
    before: &'a str,
    lines: Vec<&'a str>,
}

/// Returns the code blocks. The error is the number of the line that opens an unclosed block.
fn blocks(text: &str) -> Result<Vec<Block<'_>>, usize> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim().strip_prefix("```");
        match (open.take(), fence) {
            (Some(block), Some("")) => blocks.push(block),
            (Some(mut block), _) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, Some(info)) => {
                open = Some(Block {
                    line: index + 1,
                    info: info.trim(),
                    before,
                    lines: Vec::new(),
                });
            }
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            before = line.trim();
        }
    }
    open.map_or(Ok(blocks), |block| Err(block.line))
}

fn block_problem(block: &Block<'_>, read: impl Fn(&str) -> Option<String>) -> Option<(usize, String)> {
    let language = block.info.split([',', ' ']).next().unwrap_or_default();
    if FREE.contains(&language) {
        return None;
    }
    let problem = |text: String| Some((block.line, text));
    if language != "rust" {
        return problem(format!(
            "a block in `{language}`; write `rust`, or one of {}",
            FREE.join(", ")
        ));
    }
    let marker = block
        .before
        .strip_prefix("<!-- ")
        .and_then(|text| text.strip_suffix(" -->"));
    let Some(example) = marker
        .filter(|path| path.starts_with("examples/examples/"))
        .filter(|path| path.ends_with(".rs"))
    else {
        return problem(
            "Rust code that no test compiles; take it from an example, and write the line \
             `<!-- examples/examples/NAME.rs -->` above the block"
                .to_owned(),
        );
    };
    let Some(code) = read(example) else {
        return problem(format!(
            "there is no file {example}; correct the line above the block"
        ));
    };
    let foreign = match excerpt(&block.lines, &code) {
        Ok(()) => return None,
        Err(index) => index,
    };
    let text = block.lines.get(foreign).map_or("", |line| line.trim());
    Some((
        block.line + 1 + foreign,
        format!(
            "`{text}` does not follow here in {example}; copy the lines again, or write `{SKIP}` for omitted lines"
        ),
    ))
}

/// Checks that the lines occur in the example. The error is the index of the first missing line.
fn excerpt(lines: &[&str], example: &str) -> Result<(), usize> {
    let example: Vec<&str> = example.lines().collect();
    let mut rest = example.as_slice();
    let parts = parts(lines);
    if parts.is_empty() {
        return Err(0);
    }
    for (start, part) in parts {
        let Some(at) = find_lines(part, rest) else {
            let known = (1..part.len())
                .rev()
                .find(|count| find_lines(&part[..*count], rest).is_some());
            return Err(start + known.unwrap_or(0));
        };
        rest = &rest[at + part.len()..];
    }
    Ok(())
}

/// Splits the lines at `// …`. Each part has the index of its first line.
fn parts<'b, 'a>(lines: &'b [&'a str]) -> Vec<(usize, &'b [&'a str])> {
    let mut parts = Vec::new();
    let mut start = 0;
    for part in lines.split(|line| line.trim() == SKIP) {
        let is_text = |line: &&str| !line.trim().is_empty();
        let first = part.iter().position(is_text);
        let last = part.iter().rposition(is_text);
        if let (Some(first), Some(last)) = (first, last) {
            parts.push((start + first, &part[first..=last]));
        }
        start += part.len() + 1;
    }
    parts
}

fn find_lines(part: &[&str], lines: &[&str]) -> Option<usize> {
    let wanted = dedented(part);
    lines
        .windows(part.len())
        .position(|window| dedented(window) == wanted)
}

fn dedented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indentation = lines
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    lines
        .iter()
        .map(|line| line.get(indentation..).unwrap_or_default().trim_end())
        .collect()
}

fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_inside = false;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().starts_with("```") {
            is_inside = !is_inside;
        } else if !is_inside {
            prose.push((index + 1, line));
        }
    }
    prose
}

fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some(at) = rest.find(['`', ']']) {
            let found = &rest[at..];
            let fence = &found[..found.len() - found.trim_start_matches('`').len()];
            if fence.is_empty() {
                rest = &found[1..];
                let link = rest.strip_prefix('(').and_then(|link| link.split_once(')'));
                if let Some((target, behind)) = link {
                    links.push((number, target));
                    rest = behind;
                }
            } else {
                let after = &found[fence.len()..];
                rest = after.split_once(fence).map_or(after, |(_, behind)| behind);
            }
        }
    }
    links
}

fn link_problem(
    page: &str,
    target: &str,
    exists: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        beside(page, path)
    };
    if !exists(&file) {
        return Some(format!("there is no {file}; correct the link `{target}`"));
    }
    let anchor = anchor?;
    let headings = read(&file).map_or_else(Vec::new, |text| anchors(&text));
    if headings.iter().any(|heading| heading == anchor) {
        return None;
    }
    Some(format!(
        "no heading of {file} is `#{anchor}`; there are: {}",
        headings.join(", ")
    ))
}

fn beside(page: &str, path: &str) -> String {
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                folders.pop();
            }
            part => folders.push(part),
        }
    }
    folders.join("/")
}

fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        let depth = line.len() - heading.len();
        if !(1..=6).contains(&depth) || !heading.starts_with(' ') {
            continue;
        }
        let plain: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|character| character.is_alphanumeric() || " -_".contains(*character))
            .map(|character| if character == ' ' { '-' } else { character })
            .collect();
        let mut anchor = plain.clone();
        let mut number = 0;
        while anchors.contains(&anchor) {
            number += 1;
            anchor = format!("{plain}-{number}");
        }
        anchors.push(anchor);
    }
    anchors
}

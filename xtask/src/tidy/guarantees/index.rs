//! Finds tests by their names.
//!
//! A test is a function with an attribute `#[test]` or `#[….::test]`; a name in the list of a macro that makes one test per database or server
//! (`on_….!`, `checks!`); a function of a conformance suite or of a `suite.rs`; or a file below `tests/ui`. Its modules are the crate, the folders, the
//! file and the modules inside the file; names that say nothing (`src`, `tests`, `it`) are left out.

use std::collections::BTreeMap;

const SILENT: [&str; 6] = ["src", "tests", "it", "mod", "lib", "main"];

/// What a name stands for.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Found<'a> {
    Nothing,
    /// The file.
    One(&'a str),
    /// The files.
    Several(Vec<&'a str>),
}

#[derive(Debug)]
struct Place {
    path: String,
    modules: Vec<String>,
}

/// The tests of all files that were added.
#[derive(Debug, Default)]
pub(super) struct Index {
    tests: BTreeMap<String, Vec<Place>>,
}

impl Index {
    /// Adds the tests of a file. It is formatted: a module ends with a brace under its first letter.
    pub(super) fn add(&mut self, path: &str, source: &str) {
        let of_file: Vec<String> = path
            .trim_end_matches(".rs")
            .split('/')
            .filter(|part| !SILENT.contains(part))
            .map(str::to_owned)
            .collect();
        if path.contains("/tests/ui/") {
            if let Some((name, modules)) = of_file.split_last() {
                self.insert(name, path, modules.to_vec());
            }
            return;
        }
        let of_suite = if path.contains("/testing/conformance/") {
            Some("pub async fn ")
        } else {
            path.ends_with("/suite.rs").then_some("async fn ")
        };
        let mut inside: Vec<(usize, &str)> = Vec::new();
        let mut is_marked = false;
        for line in source.lines() {
            let code = line.trim_start();
            let indent = line.len() - code.len();
            is_marked |= is_test_attribute(code);
            if code == "}" {
                inside.retain(|(of_module, _)| *of_module < indent);
            } else if let Some(name) = defined(code, "mod ").filter(|_| code.ends_with('{')) {
                inside.push((indent, name));
            } else if let Some(name) = defined(code, "fn ") {
                if is_marked || of_suite.is_some_and(|start| code.starts_with(start)) {
                    let own = inside.iter().map(|(_, name)| *name);
                    let own = own.filter(|name| !SILENT.contains(name)).map(str::to_owned);
                    self.insert(name, path, of_file.iter().cloned().chain(own).collect());
                }
                is_marked = false;
            }
        }
        for name in listed(source) {
            self.insert(name, path, of_file.clone());
        }
    }

    fn insert(&mut self, name: &str, path: &str, modules: Vec<String>) {
        let path = path.to_owned();
        self.tests
            .entry(name.to_owned())
            .or_default()
            .push(Place { path, modules });
    }

    /// Looks for `name` or `module::name`; any number of modules may stand before the name.
    pub(super) fn find(&self, proof: &str) -> Found<'_> {
        let mut modules: Vec<&str> = proof.split("::").collect();
        let name = modules.pop().unwrap_or_default();
        let places = self.tests.get(name).into_iter().flatten();
        let fitting = places.filter(|place| {
            let end = place.modules.len().saturating_sub(modules.len());
            place.modules[end..] == modules[..]
        });
        // The tests of several databases are in one file.
        let mut paths: Vec<&str> = fitting.map(|place| place.path.as_str()).collect();
        paths.dedup();
        match paths[..] {
            [] => Found::Nothing,
            [path] => Found::One(path),
            _ => Found::Several(paths),
        }
    }
}

fn is_test_attribute(code: &str) -> bool {
    let Some(attribute) = code.strip_prefix("#[") else {
        return false;
    };
    let name = attribute.split([']', '(']).next().unwrap_or_default();
    name == "test" || name.ends_with("::test")
}

/// The name behind `mod ` or `fn `, if the line defines one.
fn defined<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, after) = code.split_once(keyword)?;
    let is_definition = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || ["async", "const", "in"].contains(&word));
    let end = after
        .find(|character: char| !character.is_alphanumeric() && character != '_')
        .unwrap_or(after.len());
    (is_definition && end > 0).then(|| &after[..end])
}

/// The names that macros make tests of: `name, …`, `only somewhere: name, …` and, for `checks!`, `name: argument, …`.
fn listed(source: &str) -> impl Iterator<Item = &str> {
    calls(source).flat_map(|(called, names)| {
        let lines = names.lines().filter(|line| !line.trim_start().starts_with("//"));
        let parts = lines.flat_map(|line| line.split(','));
        let named = parts.filter_map(move |part| match called {
            "checks" => part.split(':').next(),
            _ => part.rsplit(':').next(),
        });
        named
            .map(str::trim)
            .filter(|name| !name.is_empty() && name.chars().all(is_in_name))
    })
}

/// The calls of those macros: name and arguments, up to the first closing bracket.
fn calls(source: &str) -> impl Iterator<Item = (&str, &str)> {
    source.match_indices('!').filter_map(move |(at, _)| {
        let before = &source[..at];
        let name = &before[before.trim_end_matches(is_in_name).len()..];
        let arguments = source[at + 1..].trim_start().strip_prefix(['(', '{'])?;
        let is_list = name.starts_with("on_") || name == "checks";
        is_list.then(|| (name, arguments.split([')', '}']).next().unwrap_or_default()))
    })
}

fn is_in_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: &str = "outbox-core/tests/it/relay.rs";

    #[track_caller]
    fn check(source: &str, proof: &str, expected: bool) {
        let mut index = Index::default();
        index.add(RELAY, source);
        let expected = if expected {
            Found::One(RELAY)
        } else {
            Found::Nothing
        };
        assert_eq!(index.find(proof), expected, "{index:?}");
    }

    #[test]
    fn functions_with_an_attribute_are_tests() {
        check("#[test]\nfn works() {}\n", "works", true);
        check(
            "#[tokio::test(start_paused = true)]\n#[expect(\n    x\n)]\nasync fn works() {}\n",
            "works",
            true,
        );
        check("#[cfg(test)]\nfn works() {}\n", "works", false);
        check("#[test]\nfn works() {}\nfn helper() {}\n", "helper", false);
        check("#[test]\nfn works_well() {}\n", "works", false);
    }

    #[test]
    fn names_in_the_list_of_a_macro_are_tests() {
        check(
            "on_every_backend!(\n    one,\n    // Not this: three.\n    two,\n);\n",
            "two",
            true,
        );
        check("on_every_backend!(servers only: one);\n", "one", true);
        check("checks! {\n    one: \"handler\",\n}\n", "one", true);
        check("call!(one);\n", "one", false);
    }

    #[test]
    fn modules_tell_tests_of_one_name_apart() {
        let source = "mod head_row {\n    #[test]\n    fn postgres() {}\n}\n#[test]\nfn other() {}\n";
        check(source, "head_row::postgres", true);
        check(source, "relay::head_row::postgres", true);
        check(source, "relay::postgres", false);
        check(source, "relay::other", true);
        check(source, "head_row::other", false);
        check(source, "outbox-core::relay::other", true);
    }

    #[test]
    fn promises_of_suites_and_files_for_the_compiler_are_tests() {
        let mut index = Index::default();
        let suite = "outbox-core/src/testing/conformance/store/lease.rs";
        index.add(suite, "pub async fn leases_are_exclusive() {}\nfn helper() {}\n");
        assert_eq!(index.find("leases_are_exclusive"), Found::One(suite));
        assert_eq!(index.find("helper"), Found::Nothing);
        let refused = "outbox-sea-orm/tests/ui/record_on_pool.rs";
        index.add(refused, "fn main() {}\n");
        assert_eq!(index.find("record_on_pool"), Found::One(refused));
        index.add(RELAY, "#[test]\nfn leases_are_exclusive() {}\n");
        assert_eq!(
            index.find("leases_are_exclusive"),
            Found::Several(vec![suite, RELAY])
        );
    }
}

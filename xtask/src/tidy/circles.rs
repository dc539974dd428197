//! Refuses circles of imports: of two modules of a library, neither of which contains the other, at most one imports from the other, be it by way of third
//! ones. Then a module can be read after those that it imports from.
//!
//! A module imports from the one that defines the item, whichever module re-exports it. A module that only re-exports does not import. Tests are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::LazyLock;

use regex::Regex;

/// The names from the crate's root to a module.
type ModulePath = Vec<String>;

static COMMENT: LazyLock<Regex> = LazyLock::new(|| regex(r"//[^\n]*"));
static TESTS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"#\[cfg\((?:all\()?test[^\n]*\n(?:#\[[^\n]*\n)*mod "));
static USE: LazyLock<Regex> = LazyLock::new(|| regex(r#"(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;"]+);"#));
static PATH: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(?:crate|super)(?:::\w+)+"));
static ITEM: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\b(?:struct|enum|trait|fn|const|static|type|union|macro_rules!)\s+(\w+)"));

/// A pattern over ASCII.
fn regex(pattern: &str) -> Regex {
    let ascii = [
        (r"\b", r"(?-u:\b)"),
        (r"\s", "[[:space:]]"),
        (r"\w", "[[:word:]]"),
    ];
    let pattern = ascii.iter().fold(pattern.to_owned(), |pattern, (from, to)| {
        pattern.replace(from, to)
    });
    Regex::new(&pattern).expect("a pattern of ours")
}

/// What a module has of interest.
#[derive(Debug, Default)]
struct Module {
    items: BTreeSet<String>,
    /// Names that it re-exports, with the paths that it names.
    exports: BTreeMap<String, ModulePath>,
    /// Paths that it imports or names.
    paths: Vec<ModulePath>,
}

impl Module {
    fn read(text: &str) -> Self {
        let text = COMMENT.replace_all(text, "");
        let end = TESTS.find(&text).map_or(text.len(), |tests| tests.start());
        let text = &text[..end];
        let code = USE.replace_all(text, "");
        let words: BTreeSet<&str> = code
            .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
            .collect();
        let mut module = Self {
            items: ITEM.captures_iter(&code).map(|item| item[1].to_owned()).collect(),
            ..Self::default()
        };
        for import in USE.captures_iter(text) {
            for path in expand(&import[2]) {
                let name = path.last().cloned().unwrap_or_default();
                if import.get(1).is_some() {
                    let is_used = words.contains(name.as_str());
                    module.exports.insert(name, path.clone());
                    if !is_used {
                        continue;
                    }
                }
                module.paths.push(path);
            }
        }
        let named = PATH.find_iter(&code);
        module
            .paths
            .extend(named.map(|path| path.as_str().split("::").map(str::to_owned).collect()));
        module
    }
}

/// The paths of a tree such as `a::{b, c::d as e}`.
fn expand(tree: &str) -> Vec<ModulePath> {
    let names = |path: &str| -> ModulePath {
        let path = path.split(" as ").next().unwrap_or_default();
        path.split("::")
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect()
    };
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![names(tree)];
    };
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let (mut depth, mut start, mut branches) = (0_usize, 0, Vec::new());
    for (at, letter) in body.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                branches.push(&body[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&body[start..]);
    let branches = branches.into_iter().filter(|branch| !branch.trim().is_empty());
    branches
        .flat_map(expand)
        .map(|branch| names(head).into_iter().chain(branch).collect())
        .collect()
}

/// The modules of one crate.
#[derive(Debug, Default)]
struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// A path from the crate's root; `None` for those of other crates.
    fn rooted(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (&module[..0], &path[1..]),
            "self" => (module, &path[1..]),
            "super" => (module.get(..module.len().checked_sub(ups)?)?, &path[ups..]),
            child => {
                let inside: ModulePath = module.iter().cloned().chain([child.to_owned()]).collect();
                return self
                    .0
                    .contains_key(&inside)
                    .then(|| module.iter().chain(path).cloned().collect());
            }
        };
        Some(base.iter().chain(rest).cloned().collect())
    }

    /// The module that defines the item at this path from the root.
    fn owner(&self, path: &[String], depth: usize) -> Option<ModulePath> {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.0.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let Some((name, rest)) = rest.split_first() else {
            return Some(module.to_vec());
        };
        let known = &self.0[module];
        let exported = known
            .exports
            .get(name)
            .filter(|_| !known.items.contains(name) && depth < 8);
        match exported.and_then(|export| self.rooted(module, export)) {
            Some(export) => self.owner(&[&export, rest].concat(), depth + 1),
            None => Some(module.to_vec()),
        }
    }

    fn imports(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let of = |path: &ModulePath, module: &Module| {
            let owners = module
                .paths
                .iter()
                .filter_map(|named| self.owner(&self.rooted(path, named)?, 0));
            owners
                .filter(|owner| !owner.starts_with(path) && !path.starts_with(owner))
                .collect()
        };
        self.0
            .iter()
            .map(|(path, module)| (path, of(path, module)))
            .collect()
    }

    /// One circle for each group of modules that import each other.
    fn circles(&self) -> Vec<Vec<ModulePath>> {
        let imports = self.imports();
        let (mut circles, mut named) = (Vec::new(), BTreeSet::new());
        for start in self.0.keys() {
            if named.contains(start) {
                continue;
            }
            if let Some(circle) = shortest_circle(start, &imports) {
                named.extend(circle.iter().cloned());
                circles.push(circle);
            }
        }
        circles
    }
}

/// The shortest way over imports from a module to itself.
fn shortest_circle(
    start: &ModulePath,
    imports: &BTreeMap<&ModulePath, BTreeSet<ModulePath>>,
) -> Option<Vec<ModulePath>> {
    let mut ways = VecDeque::from([vec![start.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in imports.get(way.last()?).into_iter().flatten() {
            if next == start {
                return Some(way);
            }
            if seen.insert(next) {
                ways.push_back(way.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

/// The crate and module of a file; `None` if it is no file of a library, or a file of tests.
fn place(path: &str) -> Option<(&str, ModulePath)> {
    let (name, file) = path.split_once("/src/")?;
    let mut module: ModulePath = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    let is_test = module.iter().any(|name| name == "tests" || name == "bin");
    if !name.starts_with("outbox") || name.contains('/') || is_test {
        return None;
    }
    module.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
    Some((name, module))
}

/// One sentence for each circle.
pub(super) fn problems<'f>(files: impl Iterator<Item = (&'f str, String)>) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for (path, text) in files {
        if let Some((name, module)) = place(path) {
            crates
                .entry(name)
                .or_default()
                .0
                .insert(module, Module::read(&text));
        }
    }
    let sentence = |name: &str, circle: &[ModulePath]| {
        let names: Vec<String> = circle
            .iter()
            .map(|module| format!("`{}`", module.join("::")))
            .collect();
        format!(
            "{name}: modules import each other in a circle: {} and again {}; move what they share into the module whose subject it is, or into one of its own",
            names.join(", "),
            names[0],
        )
    };
    crates
        .iter()
        .flat_map(|(name, modules)| {
            modules
                .circles()
                .into_iter()
                .map(move |circle| sentence(name, &circle))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], circle: Option<&str>) {
        let problems = problems(files.iter().map(|(path, text)| (*path, (*text).to_owned())));
        match circle {
            None => assert!(problems.is_empty(), "{problems:?}"),
            Some(circle) => assert!(
                problems.len() == 1 && problems[0].contains(circle),
                "{problems:?}"
            ),
        }
    }

    #[test]
    fn a_circle_by_way_of_a_third_module_is_named() {
        let files = [
            ("outbox-x/src/lib.rs", "mod a; mod b; mod c;\npub use a::One;"),
            (
                "outbox-x/src/a.rs",
                "use crate::b::{Two, Other as Another};\npub struct One;",
            ),
            ("outbox-x/src/b.rs", "pub struct Two(super::c::Three);"),
            ("outbox-x/src/c.rs", "use crate::One;\npub struct Three;"),
        ];
        check(&files, Some("`a`, `b`, `c` and again `a`"));
        check(&files[..3], None);
    }

    #[test]
    fn families_tests_comments_and_other_crates_may_refer_to_each_other() {
        let files = [
            (
                "outbox-x/src/a/mod.rs",
                "mod child;\nuse self::child::work;\npub struct Shared;",
            ),
            ("outbox-x/src/a/child.rs", "use super::Shared;\npub fn work() {}"),
            (
                "outbox-x/src/b.rs",
                "// use crate::c::Three;\nuse other::c::Three;\npub struct Two;\n#[cfg(test)]\nmod tests {\nuse crate::c::Three;\n}",
            ),
            ("outbox-x/src/c.rs", "use crate::b::Two;\npub struct Three;"),
            ("outbox-y/src/b.rs", "use crate::c::Three;"),
        ];
        check(&files, None);
    }
}

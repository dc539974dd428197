//! The allowed dependencies between crates. Normal and build dependencies count. An unlisted crate
//! is an error.

use crate::workspace::Package;

const ALLOWED: &[(&str, &str)] = &[
    ("outbox-macros", ""),
    ("outbox-engine", "outbox-macros"),
    ("outbox-testing", "outbox-engine"),
    ("outbox-sea-orm", "outbox-engine"),
    ("outbox-nats", "outbox-engine"),
    ("outbox-log", "outbox-engine outbox-sea-orm"),
    ("outbox-inbox", "outbox-engine outbox-macros outbox-sea-orm"),
    (
        "outbox",
        "outbox-engine outbox-inbox outbox-log outbox-nats outbox-sea-orm outbox-testing",
    ),
    ("outbox-cli", "outbox"),
    (
        "examples",
        "outbox outbox-engine outbox-inbox outbox-log outbox-nats outbox-sea-orm",
    ),
    (
        "outbox-stress",
        "outbox-engine outbox-inbox outbox-log outbox-nats outbox-sea-orm outbox-test-servers outbox-testing",
    ),
    ("outbox-test-servers", "outbox-testing"),
    ("xtask", ""),
];

/// External crates that would bring a database or a broker into the wrong layer.
const BANNED: &[(&str, &str)] = &[
    ("outbox-engine", "sea-orm sqlx async-nats redis"),
    ("outbox-testing", "sea-orm sqlx async-nats redis"),
    ("outbox-nats", "sea-orm sqlx redis"),
    ("outbox-sea-orm", "async-nats redis"),
    ("outbox-log", "async-nats redis"),
    ("outbox-inbox", "async-nats"),
];

pub(crate) fn problems(packages: &[Package]) -> Vec<String> {
    let members: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    packages
        .iter()
        .flat_map(|package| problems_of(package, &members))
        .collect()
}

fn problems_of(package: &Package, members: &[&str]) -> Vec<String> {
    let name = package.name.as_str();
    let listed = |table: &'static [(&str, &'static str)]| {
        let found = table.iter().find(|(listed, _)| *listed == name);
        found.map(|(_, names)| names.split_whitespace())
    };
    let Some(allowed) = listed(ALLOWED) else {
        return vec![format!(
            "the crate {name} has no place in ALLOWED of xtask/src/graph.rs; add it there"
        )];
    };
    let allowed: Vec<&str> = allowed.collect();
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        if members.contains(&dependency.as_str()) && !allowed.contains(&dependency.as_str()) {
            problems.push(format!(
                "{name} depends on {dependency}, which its layer must not use; see xtask/src/graph.rs"
            ));
        }
        for family in listed(BANNED).into_iter().flatten() {
            if is_family(dependency, family) {
                problems.push(format!(
                    "{name} depends on {dependency}, but this layer must work without {family}; use a seam of outbox-engine"
                ));
            }
        }
    }
    problems
}

/// Whether a dependency belongs to a family: `sqlx-core` belongs to sqlx, `sqlxmq` does not.
fn is_family(dependency: &str, family: &str) -> bool {
    let rest = dependency.strip_prefix(family);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn layers_depend_only_on_allowed_layers() {
        let check = |name: &str, dependencies: &[&str], expected: usize| {
            let package = Package {
                name: name.to_owned(),
                dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
            };
            let members = [
                "outbox-macros",
                "outbox-engine",
                "outbox-sea-orm",
                "outbox-nats",
                "outbox-kafka",
            ];
            let problems = problems_of(&package, &members);
            assert_eq!(problems.len(), expected, "{problems:?}");
        };
        check("outbox-engine", &["outbox-macros", "tokio", "sqlxmq"], 0);
        check("outbox-engine", &["outbox-nats"], 1);
        check("outbox-engine", &["sea-orm-migration", "sqlx"], 2);
        check("outbox-nats", &["outbox-engine", "outbox-sea-orm"], 1);
        check("outbox-sea-orm", &["outbox-engine", "async-nats"], 1);
        check("outbox-kafka", &["outbox-engine"], 1);
    }

    #[test]
    fn this_workspace_has_the_allowed_graph() {
        let problems = problems(&Workspace::load().unwrap().packages);
        assert_eq!(problems, Vec::<String>::new());
    }
}

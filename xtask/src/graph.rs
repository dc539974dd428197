//! The allowed dependencies between crates: the layers of the architecture, as a check.
//!
//! Normal and build dependencies count; those of a crate's tests cannot reach its users. A crate that is not listed is an error too, so that a new one
//! gets its place on purpose.

use crate::workspace::Package;

/// Every crate, with the crates of this workspace it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("outbox-macros", &[]),
    ("outbox-core", &["outbox-macros"]),
    ("outbox-sea-orm", &["outbox-core"]),
    ("outbox-nats", &["outbox-core"]),
    ("outbox-log", &["outbox-core", "outbox-sea-orm"]),
    (
        "outbox-inbox",
        &["outbox-core", "outbox-macros", "outbox-sea-orm"],
    ),
    (
        "outbox",
        &["outbox-core", "outbox-inbox", "outbox-nats", "outbox-sea-orm"],
    ),
    // Read models for operators: over the seams of the core, and over the tables of inboxes.
    ("outbox-admin", &["outbox-core", "outbox-inbox"]),
    // The log as well, which `outbox` leaves out: the program sets it up and reads it.
    ("outbox-cli", &["outbox", "outbox-admin", "outbox-log"]),
    (
        "examples",
        &[
            "outbox",
            "outbox-core",
            "outbox-inbox",
            "outbox-log",
            "outbox-nats",
            "outbox-sea-orm",
        ],
    ),
    (
        "outbox-stress",
        &[
            "outbox-core",
            "outbox-inbox",
            "outbox-log",
            "outbox-nats",
            "outbox-sea-orm",
            "outbox-test-servers",
            "outbox-test-servers",
        ],
    ),
    // For tests only, and for programs that torment servers.
    ("outbox-test-servers", &["outbox-core"]),
    // Private servers for the tests of all crates.
    ("outbox-test-servers", &["outbox-core"]),
    ("xtask", &[]),
];

/// External crates that would drag a database or a broker into a layer that must not know it.
const BANNED: &[(&str, &[&str])] = &[
    ("outbox-core", &["sea-orm", "sqlx", "async-nats", "redis"]),
    ("outbox-nats", &["sea-orm", "sqlx", "redis"]),
    ("outbox-sea-orm", &["async-nats", "redis"]),
    ("outbox-log", &["async-nats", "redis"]),
    ("outbox-inbox", &["async-nats"]),
];

/// One sentence for each edge that should not be there, saying what to do about it.
pub(crate) fn problems(packages: &[Package]) -> Vec<String> {
    packages
        .iter()
        .flat_map(|package| problems_of(package, packages))
        .collect()
}

fn problems_of(package: &Package, packages: &[Package]) -> Vec<String> {
    let name = &package.name;
    let Some((_, allowed)) = ALLOWED.iter().find(|(listed, _)| listed == name) else {
        return vec![format!(
            "the crate {name} has no place in the crate graph; decide what it may depend on and add it to ALLOWED in \
             xtask/src/graph.rs"
        )];
    };
    let is_member = |dependency: &str| packages.iter().any(|package| package.name == dependency);
    let inside = package
        .dependencies
        .iter()
        .filter(|dependency| is_member(dependency));
    let unexpected = inside.filter(|dependency| !allowed.contains(&dependency.as_str())).map(|dependency| {
        format!(
            "{name} depends on {dependency}, which its layer must not know; move the code that needs it to the crate \
             that may, or argue for the edge in ALLOWED of xtask/src/graph.rs"
        )
    });
    let banned = BANNED
        .iter()
        .filter(|(listed, _)| listed == name)
        .flat_map(|(_, banned)| banned.iter());
    let forbidden = banned.flat_map(|family| {
        let relatives = package.dependencies.iter().filter(|dependency| is_family(dependency, family));
        relatives.map(move |dependency| {
            format!(
                "{name} depends on {dependency}, but this layer must work without {family}; put the code behind a seam \
                 of outbox-core and into the adapter crate"
            )
        })
    });
    unexpected.chain(forbidden).collect()
}

/// `sqlx-core` is sqlx, `sqlxmq` is something else.
fn is_family(dependency: &str, family: &str) -> bool {
    dependency
        .strip_prefix(family)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package {
            has_library: true,
            name: name.to_owned(),
            dependencies: dependencies
                .iter()
                .map(|&dependency| dependency.to_owned())
                .collect(),
        }
    }

    #[track_caller]
    fn check(wrong: Package, expected: &str) {
        let mut packages = vec![
            package("outbox-macros", &["syn"]),
            package("outbox-core", &["outbox-macros", "tokio"]),
            package("outbox-sea-orm", &["outbox-core", "sea-orm"]),
            package("outbox-nats", &["outbox-core", "async-nats"]),
        ];
        assert_eq!(problems(&packages), Vec::<String>::new());
        packages.retain(|package| package.name != wrong.name);
        packages.push(wrong);
        let problems = problems(&packages);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }

    #[test]
    fn adapters_do_not_know_each_other() {
        check(
            package("outbox-nats", &["outbox-core", "outbox-sea-orm"]),
            "outbox-nats depends on outbox-sea-orm, which",
        );
    }

    #[test]
    fn the_core_knows_no_adapter() {
        check(
            package("outbox-core", &["outbox-nats"]),
            "outbox-core depends on outbox-nats, which",
        );
    }

    #[test]
    fn the_core_knows_no_database_in_any_disguise() {
        check(
            package("outbox-core", &["sea-orm-migration"]),
            "outbox-core depends on sea-orm-migration, but",
        );
        check(
            package("outbox-core", &["sqlx"]),
            "outbox-core depends on sqlx, but",
        );
    }

    #[test]
    fn the_database_adapter_knows_no_broker() {
        check(
            package("outbox-sea-orm", &["outbox-core", "async-nats"]),
            "outbox-sea-orm depends on async-nats, but",
        );
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        check(
            package("outbox-kafka", &["outbox-core"]),
            "the crate outbox-kafka has no place",
        );
    }

    #[test]
    fn this_workspace_has_the_graph_it_should_have() {
        assert_eq!(
            problems(&Workspace::load().unwrap().packages),
            Vec::<String>::new()
        );
    }
}

//! The tables of rights in `docs/operations.md` are those of the code, from which the program prints files.

use std::fmt::Write as _;

use outbox_admin::rights::{GRANTS, NatsRole, Stream, When, permissions};

const PAGE: &str = include_str!("../../../docs/operations.md");

#[test]
fn the_rights_in_the_database_stand_in_the_documentation_as_in_the_code() {
    let mut table = "| role | on | rights | for |\n|---|---|---|---|\n".to_owned();
    for grant in GRANTS {
        let when = match grant.when {
            When::Always => String::new(),
            other => format!(", {other}"),
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(
            table,
            "| `{}` | `{}` | {} | {}{when} |",
            grant.role.as_str(),
            grant.object.name(),
            grant.privileges.join(", "),
            grant.why
        );
    }
    assert!(
        PAGE.contains(&table),
        "docs/operations.md needs this table:\n{table}"
    );
}

/// The texts between back-ticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_permissions_on_nats_stand_in_the_documentation_as_in_the_code() {
    let stream = Stream {
        name: "EVENTS",
        prefix: "events",
        subjects: &[],
        consumers: &["billing".to_owned()],
        user: "<user>",
        bucket: "outbox-dedup",
    };
    let (_, table) = PAGE.split_once("| for | publish | subscribe |").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.split('|').collect())
        .collect();
    assert_eq!(rows.len(), NatsRole::ALL.len());
    for role in NatsRole::ALL {
        let name = format!("(`{}`)", role.as_str());
        let row = rows.iter().find(|row| row[1].trim_end().ends_with(&name));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        let needed = permissions(&[role], &stream);
        assert_eq!(
            (quoted(row[2]), quoted(row[3])),
            (
                needed.publish.iter().map(String::as_str).collect(),
                needed.subscribe.iter().map(String::as_str).collect()
            ),
            "{name}"
        );
    }
}

//! Database rights per role. Grants, documentation and tests derive from this list.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// A login of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A Rust writer.
    Writer,
    /// A writer that uses `outbox_record`.
    SqlWriter,
    /// A relay.
    Relay,
    /// A relay that reads the PostgreSQL log: [`Self::Relay`] plus the attribute `REPLICATION`.
    LogRelay,
    /// A consumer. If its handlers record events, add [`Self::Writer`].
    Consumer,
    /// A service with the HTTP layer.
    Http,
    /// A person with read-only access.
    Viewer,
    /// An operator: reads and repairs.
    Operator,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A database object, without schema and prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    /// A table.
    Table(&'static str),
    /// A view, which reads with its owner's rights.
    View(&'static str),
    /// A sequence, in PostgreSQL only.
    Sequence(&'static str),
    /// A function, in MySQL and MariaDB a procedure.
    Routine(&'static str),
}

impl Object {
    /// Name without schema and prefix.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table(name) | Self::View(name) | Self::Sequence(name) | Self::Routine(name) => name,
        }
    }

    /// Whether the object belongs to the inbox.
    pub fn is_of_inbox(self) -> bool {
        self.name().starts_with("inbox_")
    }
}

/// Deployments that need the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// All deployments.
    Always,
    /// Every retention except `forever`.
    Deletes,
    /// Deployments with a log, on PostgreSQL.
    Log,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::Deletes => "unless published messages are kept forever",
            Self::Log => "with a log",
        })
    }
}

/// Rights row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// The object.
    pub object: Object,
    /// SQL privileges.
    pub privileges: &'static [&'static str],
    /// Deployments.
    pub when: When,
    /// Purpose.
    pub why: &'static str,
}

const SELECT: &[&str] = &["SELECT"];
const SELECT_UPDATE: &[&str] = &["SELECT", "UPDATE"];
const SELECT_UPDATE_DELETE: &[&str] = &["SELECT", "UPDATE", "DELETE"];
const NUMBERS: &[&str] = &["SELECT", "INSERT", "UPDATE"];
const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];
const UPDATE_DELETE: &[&str] = &["UPDATE", "DELETE"];

const fn on(
    role: Role,
    table: &'static str,
    privileges: &'static [&'static str],
    why: &'static str,
) -> Grant {
    Grant {
        role,
        object: Object::Table(table),
        privileges,
        when: When::Always,
        why,
    }
}

const fn view(view: &'static str, why: &'static str) -> Grant {
    Grant {
        object: Object::View(view),
        ..on(Role::Viewer, view, SELECT, why)
    }
}

const fn log(role: Role, privileges: &'static [&'static str], why: &'static str) -> Grant {
    Grant {
        when: When::Log,
        ..on(role, "outbox_log", privileges, why)
    }
}

/// All rights. An operator is also a viewer; a log relay is also a relay.
pub const GRANTS: &[Grant] = &[
    on(Role::Writer, "outbox_messages", &["INSERT"], "record"),
    on(
        Role::Writer,
        "outbox_aggregates",
        NUMBERS,
        "number the messages of an aggregate",
    ),
    Grant {
        object: Object::Sequence("outbox_row_ids"),
        ..on(Role::Writer, "", &["USAGE"], "draw row ids, on PostgreSQL")
    },
    on(
        Role::Writer,
        "outbox_dedup_keys",
        &["INSERT"],
        "record with deduplication keys",
    ),
    Grant {
        object: Object::Routine("outbox_record"),
        ..on(
            Role::SqlWriter,
            "",
            &["EXECUTE"],
            "record, with the rights of its owner",
        )
    },
    on(Role::Relay, "outbox_messages", SELECT_UPDATE, "fetch and settle"),
    Grant {
        when: When::Deletes,
        ..on(
            Role::Relay,
            "outbox_messages",
            &["DELETE"],
            "delete published messages",
        )
    },
    on(Role::Relay, "outbox_blocks", ALL, "store back-offs and halts"),
    on(Role::Relay, "outbox_leases", SELECT_UPDATE, "own partitions"),
    on(Role::Relay, "outbox_relays", ALL, "announce itself"),
    on(
        Role::Relay,
        "outbox_pauses",
        SELECT_UPDATE_DELETE,
        "read pauses, and finish expired pauses",
    ),
    on(
        Role::Relay,
        "outbox_dedup_keys",
        SELECT_UPDATE_DELETE,
        "delete expired keys",
    ),
    log(Role::LogRelay, SELECT_UPDATE, "store the log position"),
    on(Role::Consumer, "inbox_messages", ALL, "handle each message once"),
    on(
        Role::Consumer,
        "inbox_dead_letters",
        ALL,
        "keep dead letters, and retry them",
    ),
    on(Role::Consumer, "inbox_sequences", NUMBERS, "strategy `sequence`"),
    on(Role::Consumer, "inbox_pauses", SELECT, "read its pause"),
    on(
        Role::Http,
        "inbox_requests",
        ALL,
        "answer a repeated request with the first answer",
    ),
    on(Role::Viewer, "outbox_messages", SELECT, "list, show, status"),
    on(Role::Viewer, "outbox_aggregates", SELECT, "why"),
    on(Role::Viewer, "outbox_blocks", SELECT, "blocked, why"),
    on(Role::Viewer, "outbox_leases", SELECT, "partitions"),
    on(Role::Viewer, "outbox_relays", SELECT, "relays"),
    on(Role::Viewer, "outbox_pauses", SELECT, "status, why"),
    on(Role::Viewer, "outbox_operations", SELECT, "audit"),
    log(
        Role::Viewer,
        SELECT,
        "status, doctor, log status; replay and reconcile logged messages",
    ),
    view("outbox_messages_readable", "SQL queries"),
    view("outbox_dead_letters", "SQL queries"),
    view("outbox_blocked", "SQL queries"),
    on(Role::Viewer, "inbox_messages", SELECT, "doctor, timeline, prove"),
    on(Role::Viewer, "inbox_sequences", SELECT, "why"),
    on(
        Role::Viewer,
        "inbox_dead_letters",
        SELECT,
        "dead-letters list, show, prove",
    ),
    on(Role::Viewer, "inbox_pauses", SELECT, "consumers list"),
    on(Role::Viewer, "inbox_operations", SELECT, "audit"),
    view("inbox_dead_letters_readable", "SQL queries"),
    on(
        Role::Operator,
        "outbox_operations",
        &["INSERT", "UPDATE"],
        "record each change",
    ),
    on(Role::Operator, "outbox_messages", &["UPDATE"], "retry, skip"),
    on(Role::Operator, "outbox_messages", &["INSERT"], "replay"),
    on(
        Role::Operator,
        "outbox_blocks",
        UPDATE_DELETE,
        "retry, skip, resume",
    ),
    on(
        Role::Operator,
        "outbox_pauses",
        &["INSERT", "UPDATE", "DELETE"],
        "pause, unpause",
    ),
    on(Role::Operator, "outbox_messages", &["DELETE"], "forget"),
    on(Role::Operator, "outbox_aggregates", UPDATE_DELETE, "forget"),
    on(
        Role::Operator,
        "outbox_dedup_keys",
        &["SELECT", "DELETE"],
        "forget",
    ),
    on(
        Role::Operator,
        "inbox_operations",
        &["INSERT", "UPDATE"],
        "record each change",
    ),
    on(
        Role::Operator,
        "inbox_dead_letters",
        UPDATE_DELETE,
        "dead-letters retry, cancel-retry, discard",
    ),
    on(
        Role::Operator,
        "inbox_pauses",
        &["INSERT", "DELETE"],
        "consumers pause, resume",
    ),
    on(
        Role::Operator,
        "inbox_messages",
        &["UPDATE"],
        "purge --dead-letters",
    ),
];

const PRIVILEGES: [&str; 6] = ["SELECT", "INSERT", "UPDATE", "DELETE", "USAGE", "EXECUTE"];

/// Combined rights of roles, in the order of [`GRANTS`].
pub fn grants(roles: &[Role], takes: impl Fn(&Grant) -> bool) -> Vec<(Object, Vec<&'static str>)> {
    let has = |role: Role| {
        roles.contains(&role)
            || (role == Role::Viewer && roles.contains(&Role::Operator))
            || (role == Role::Relay && roles.contains(&Role::LogRelay))
    };
    let mut found: Vec<(Object, Vec<&'static str>)> = Vec::new();
    for grant in GRANTS.iter().filter(|grant| has(grant.role) && takes(grant)) {
        match found.iter_mut().find(|(object, _)| *object == grant.object) {
            Some((_, privileges)) => privileges.extend(grant.privileges),
            None => found.push((grant.object, grant.privileges.to_vec())),
        }
    }
    for (_, privileges) in &mut found {
        privileges.sort_by_key(|privilege| PRIVILEGES.iter().position(|known| known == privilege));
        privileges.dedup();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_together_have_the_rights_of_each_once() {
        let both = grants(&[Role::Consumer, Role::Viewer], |grant| {
            grant.object.is_of_inbox()
        });
        let letters = both
            .iter()
            .find(|(object, _)| *object == Object::Table("inbox_dead_letters"));
        assert_eq!(letters.map(|(_, privileges)| privileges.as_slice()), Some(ALL));
        assert_eq!(
            both.iter()
                .filter(|(object, _)| object.name() == "inbox_pauses")
                .count(),
            1
        );
    }

    #[test]
    fn operator_has_all_viewer_rights() {
        let of_operator = grants(&[Role::Operator], |_| true);
        for (object, privileges) in grants(&[Role::Viewer], |_| true) {
            let (_, more) = of_operator
                .iter()
                .find(|(other, _)| *other == object)
                .expect("the object");
            assert!(
                privileges.iter().all(|privilege| more.contains(privilege)),
                "{object:?}"
            );
        }
    }

    #[test]
    fn each_privilege_has_its_place() {
        for grant in GRANTS {
            assert!(!grant.privileges.is_empty() && !grant.why.is_empty());
            assert!(
                grant
                    .privileges
                    .iter()
                    .all(|privilege| PRIVILEGES.contains(privilege)),
                "{grant:?}"
            );
        }
    }
}

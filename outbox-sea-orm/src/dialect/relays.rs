//! SQL of the registry of relays. The table has a few rows, and each statement reads all of them.

use outbox_core::{Announcement, Retention};
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use super::{Dialect, micros};
use crate::sql::Sql;

/// The columns in the order of [`Announced::values`], after `owner` and before `failing_since`.
const COLUMNS: [&str; 10] = [
    "fitness",
    "name",
    "mode",
    "stream",
    "subjects",
    "source",
    "retention_seconds",
    "version",
    "error_class",
    "error",
];

/// What a relay stores with each announcement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced<'a> {
    pub(crate) owner: Uuid,
    pub(crate) name: &'a str,
    pub(crate) ttl_micros: i64,
    pub(crate) announcement: &'a Announcement,
}

/// A text as each database stores it, whatever its encoding: printable ASCII, everything else escaped.
fn printable(text: &str, chars_max: usize) -> String {
    let escaped = text.chars().flat_map(|character| {
        let is_printable = (' '..='~').contains(&character);
        let escaped = (!is_printable).then(|| character.escape_default());
        let plain = is_printable.then_some(character);
        plain.into_iter().chain(escaped.into_iter().flatten())
    });
    escaped.take(chars_max).collect()
}

impl Announced<'_> {
    /// The stream, the subjects and the source, as bytes on MySQL.
    fn destination(&self, dialect: &Dialect) -> [Value; 3] {
        let destination = self.announcement.registration.destination.as_ref();
        let text = |text: Option<&String>| match (text, dialect.backend) {
            (Some(text), _) => dialect.key(&printable(text, 255)),
            (None, DbBackend::MySql) => Value::Bytes(None),
            (None, _) => Value::String(None),
        };
        [
            text(destination.map(|destination| &destination.stream)),
            text(destination.map(|destination| &destination.subjects)),
            text(destination.map(|destination| &destination.source)),
        ]
    }

    fn values(&self, dialect: &Dialect) -> [Value; 10] {
        let Announced { announcement, .. } = self;
        let registration = &announcement.registration;
        let retention = registration.retention.map(|retention| match retention {
            Retention::KeepFor(time) => i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            Retention::Delete => 0,
            Retention::Keep => -1,
        });
        let trouble = announcement.trouble.as_ref();
        let text = |text: Option<String>| Value::String(text);
        let [stream, subjects, source] = self.destination(dialect);
        [
            Value::from(i64::from(announcement.fitness.number())),
            Value::from(self.name),
            Value::from(i64::from(registration.mode as u8)),
            stream,
            subjects,
            source,
            Value::BigInt(retention),
            text(
                registration
                    .version
                    .as_deref()
                    .map(|version| printable(version, 64)),
            ),
            text(trouble.map(|trouble| trouble.class.as_str().to_owned())),
            text(trouble.map(|trouble| printable(&trouble.error, outbox_core::store::ERROR_CHARS_MAX))),
        ]
    }
}

impl Dialect {
    /// Stores an announcement.
    pub(crate) fn announce(&self, announced: Announced<'_>) -> Statement {
        let mut sql = self.sql("");
        let owner = sql.placeholder(announced.owner);
        self.push_announce(&mut sql, announced, &owner);
        sql.statement()
    }

    /// Appends the statement that stores an announcement. On MySQL and SQLite `owner` must be the first value.
    pub(super) fn push_announce(&self, sql: &mut Sql, announced: Announced<'_>, owner: &str) {
        let values = announced.values(self).map(|value| sql.placeholder(value));
        let ttl = sql.placeholder(announced.ttl_micros);
        let trouble = announced.announcement.trouble.as_ref();
        let failing_for = trouble.map(|trouble| -micros(trouble.failing_for));
        let failing_for = sql.placeholder(Value::BigInt(failing_for));
        let columns: Vec<&str> = COLUMNS
            .into_iter()
            .chain(["expires_at", "failing_since"])
            .collect();
        let replaced: Vec<String> = columns
            .iter()
            .map(|column| match self.backend {
                DbBackend::MySql => format!("{column} = VALUES({column})"),
                _ => format!("{column} = EXCLUDED.{column}"),
            })
            .collect();
        sql.push(&format!(
            "INSERT INTO {} (owner, {}) VALUES ({owner}, {}, {}, {}) {} {}",
            self.relays,
            columns.join(", "),
            values.join(", "),
            self.now_plus(&ttl),
            self.now_plus(&failing_for),
            match self.backend {
                DbBackend::MySql => "ON DUPLICATE KEY UPDATE",
                _ => "ON CONFLICT (owner) DO UPDATE SET",
            },
            replaced.join(", ")
        ));
    }

    /// Deletes the announcements of other relays that ran out.
    pub(crate) fn forget_relays(&self, owner: Uuid) -> Statement {
        let mut sql = self.sql(format!(
            "DELETE FROM {} WHERE NOT ({}) AND owner <> ",
            self.relays,
            self.is_alive()
        ));
        sql.bind(owner);
        sql.statement()
    }

    /// Counts the other relays that are alive, by fitness, and of those the relays that registered another destination.
    pub(crate) fn count_relays(&self, announced: Announced<'_>) -> Statement {
        let mut sql = self.sql("");
        self.push_count_relays(&mut sql, announced, |sql| sql.placeholder(announced.owner));
        sql.statement()
    }

    /// Appends the query of [`Self::count_relays`].
    pub(super) fn push_count_relays(
        &self,
        sql: &mut Sql,
        announced: Announced<'_>,
        owner: impl FnOnce(&mut Sql) -> String,
    ) {
        let [stream, subjects, source] = announced.destination(self).map(|value| sql.placeholder(value));
        let owner = owner(sql);
        sql.push(&format!(
            "SELECT {} AS fitness, count(*) AS relays, {} AS disagreeing \
             FROM {} WHERE owner <> {owner} AND {} GROUP BY fitness",
            self.int("fitness"),
            self.count_where(&format!(
                "stream <> {stream} OR subjects <> {subjects} OR source <> {source}"
            )),
            self.relays,
            self.is_alive(),
        ));
    }

    /// The relays that are alive, or those whose announcements have expired.
    pub(crate) fn registered_relays(&self, alive: bool) -> Statement {
        let is_alive = self.is_alive();
        let condition = if alive {
            is_alive
        } else {
            format!("NOT ({is_alive})")
        };
        self.sql(format!(
            "SELECT owner, name, {} AS fitness, {} AS mode, {} AS stream, {} AS subjects, {} AS source, retention_seconds, version, \
             error_class, error, {} AS failing_micros, {} AS expires_micros, {} AS now_micros FROM {} WHERE {condition} ORDER BY owner",
            self.int("fitness"),
            self.int("mode"),
            self.bytes("stream"),
            self.bytes("subjects"),
            self.bytes("source"),
            self.micros_of_any("failing_since"),
            self.micros_of_any("expires_at"),
            self.micros(self.statement_now()),
            self.relays,
        ))
        .statement()
    }

    /// Whether an announcement counts: it has not expired, and was not made before the clock was set back.
    pub(super) fn is_alive(&self) -> String {
        format!("expires_at > {} AND NOT ({})", self.now(), self.is_ahead())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_stored_as_printable_ascii() {
        assert_eq!(printable("shöp\u{0}\n`a`", 255), r"sh\u{f6}p\u{0}\n`a`");
        assert_eq!(printable("abc", 2), "ab");
    }
}

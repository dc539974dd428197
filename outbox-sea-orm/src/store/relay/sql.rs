//! SQL of registered relays.

use outbox_core::store::ERROR_CHARS_MAX;
use outbox_core::{Announcement, Retention};
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use crate::sql::{Dialect, micros};
use crate::store::lease::sql::is_ahead;

const COLUMNS: [&str; 12] = [
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
    "expires_at",
    "failing_since",
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Announced<'a> {
    pub(super) owner: Uuid,
    pub(super) name: &'a str,
    pub(super) ttl_micros: i64,
    pub(super) announcement: &'a Announcement,
}

pub(super) const INSTANCE: char = '\t';

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
    fn destination(&self, dialect: &Dialect) -> [Value; 3] {
        let destination = self.announcement.registration.destination.as_ref();
        let Some(destination) = destination else {
            let none = match dialect.backend {
                DbBackend::MySql => Value::Bytes(None),
                _ => Value::String(None),
            };
            return [none.clone(), none.clone(), none];
        };
        let instance = destination.instance.as_ref();
        let instance = instance.map(|instance| format!("{INSTANCE}{}", printable(instance, 100)));
        let stream = printable(
            &destination.stream,
            255 - instance.as_ref().map_or(0, String::len),
        );
        [
            stream + &instance.unwrap_or_default(),
            printable(&destination.subjects, 255),
            printable(&destination.source, 255),
        ]
        .map(|text| dialect.key(&text))
    }

    fn values(&self, dialect: &Dialect) -> [Value; 12] {
        let Announced { announcement, .. } = self;
        let registration = &announcement.registration;
        let retention = registration.retention.map(|retention| match retention {
            Retention::KeepFor(time) => i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            Retention::Delete => 0,
            Retention::Keep => -1,
        });
        let trouble = announcement.trouble.as_ref();
        let version = registration
            .version
            .as_deref()
            .map(|version| printable(version, 64));
        let [stream, subjects, source] = self.destination(dialect);
        [
            i64::from(announcement.health.number()).into(),
            self.name.into(),
            i64::from(registration.mode as u8).into(),
            stream,
            subjects,
            source,
            retention.into(),
            version.into(),
            trouble.map(|trouble| trouble.class.as_str().to_owned()).into(),
            trouble
                .map(|trouble| printable(&trouble.error, ERROR_CHARS_MAX))
                .into(),
            self.ttl_micros.into(),
            trouble.map(|trouble| -micros(trouble.failing_for)).into(),
        ]
    }
}

pub(super) fn announce(dialect: &Dialect, announced: Announced<'_>) -> Statement {
    let mut sql = dialect.sql("");
    let owner = sql.placeholder(announced.owner);
    let mut values = announced.values(dialect).map(|value| sql.placeholder(value));
    for time in &mut values[10..] {
        *time = dialect.now_plus(time);
    }
    sql.push(&format!(
        "INSERT INTO {} (owner, {}) VALUES ({owner}, {}) {}",
        dialect.relays,
        COLUMNS.join(", "),
        values.join(", "),
        dialect.on_conflict("owner", &COLUMNS)
    ));
    sql.statement()
}

pub(super) fn delete_expired(dialect: &Dialect, owner: Uuid) -> Statement {
    let text = format!(
        "DELETE FROM {} WHERE NOT ({}) AND owner <> ?",
        dialect.relays,
        is_alive(dialect)
    );
    dialect.statement(&text, [owner.into()])
}

pub(super) fn count(dialect: &Dialect, announced: Announced<'_>) -> Statement {
    let mut sql = dialect.sql("");
    let [stream, subjects, source] = announced.destination(dialect).map(|value| sql.placeholder(value));
    let owner = sql.placeholder(announced.owner);
    let alive = is_alive(dialect);
    let disagrees =
        format!("{alive} AND (stream <> {stream} OR subjects <> {subjects} OR source <> {source})");
    sql.push(&format!(
        "SELECT {} AS fitness, {} AS relays, {} AS disagreeing, {} AS expired FROM {} WHERE owner <> {owner} \
         GROUP BY fitness",
        dialect.int("fitness"),
        dialect.count_where(&alive),
        dialect.count_where(&disagrees),
        dialect.count_where(&format!("NOT ({alive})")),
        dialect.relays,
    ));
    sql.statement()
}

pub(super) fn registered(dialect: &Dialect, alive: bool) -> Statement {
    let not = if alive { "" } else { "NOT " };
    let text = format!(
        "SELECT owner, name, {} AS fitness, {} AS mode, {} AS stream, {} AS subjects, {} AS source, retention_seconds, version, \
         error_class, error, {} AS failing_micros, {} AS expires_micros, {} AS now_micros FROM {} WHERE {not}({}) ORDER BY owner",
        dialect.int("fitness"),
        dialect.int("mode"),
        dialect.bytes("stream"),
        dialect.bytes("subjects"),
        dialect.bytes("source"),
        dialect.micros_of_any("failing_since"),
        dialect.micros_of_any("expires_at"),
        dialect.micros(dialect.statement_now()),
        dialect.relays,
        is_alive(dialect),
    );
    dialect.statement(&text, [])
}

pub(crate) fn withdraw(dialect: &Dialect, owner: Uuid) -> Statement {
    dialect.statement(
        &format!("DELETE FROM {} WHERE owner = ?", dialect.relays),
        [owner.into()],
    )
}

/// On MySQL, the statement forces a durable commit: it adds a microsecond to an expiry.
pub(crate) fn touch(dialect: &Dialect, partition: i64) -> Statement {
    let text = format!(
        "UPDATE {} SET expires_at = TIMESTAMPADD(MICROSECOND, 1, expires_at) \
         WHERE owner = (SELECT lease.owner FROM {} lease WHERE lease.partition_no = ?)",
        dialect.relays, dialect.leases
    );
    dialect.statement(&text, [partition.into()])
}

fn is_alive(dialect: &Dialect) -> String {
    format!("expires_at > {} AND NOT ({})", dialect.now(), is_ahead(dialect))
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

//! Dead letters: what a consumer gave up, with everything needed to understand it and to try again.
//!
//! Invariant: one row per message and consumer, also if a crash makes the broker deliver it again before it was acknowledged. The key is
//! derived: from consumer and message id, or, for what is no message, from everything that was delivered (consumer,
//! subject, position, headers, payload; the position alone would collide after a stream is created anew, and the bytes would be lost).
//! For messages the inbox row (status dead) is written in the same transaction. Absent here: deciding what is given up.

use outbox_core::store::storable_error;
use outbox_core::{Incoming, MessageId};
use outbox_sea_orm::TableNames;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dedup::sql::{InboxSql, integer};

/// Something that a consumer gave up.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Key of the row.
    pub id: Uuid,
    /// The consumer that gave up.
    pub consumer: String,
    /// The message's id; `None` for what is no message of an outbox.
    pub message_id: Option<MessageId>,
    /// The subject it was published on, with NUL replaced.
    pub subject: String,
    /// Position in the stream when it was delivered.
    pub position: u64,
    /// Headers as received.
    pub headers: Vec<(String, String)>,
    /// The payload as received.
    pub payload: Vec<u8>,
    /// Why it was given up: at most 1,000 characters.
    pub error: String,
    /// Failed attempts; 0 if no handler ever ran.
    pub attempts: u32,
    /// When it was given up, by the database's clock.
    pub created_at: OffsetDateTime,
}

impl std::fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers and payload may hold personal data and stay out of logs.
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("consumer", &self.consumer)
            .field("message_id", &self.message_id)
            .field("subject", &self.subject)
            .field("position", &self.position)
            .field("payload_bytes", &self.payload.len())
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// Lists the dead letters of a consumer, oldest first, at most `limit`.
///
/// # Errors
///
/// The database's error; [`DbErr::Type`] or [`DbErr::Json`] for a row that this crate did not write.
pub async fn dead_letters(
    db: &DatabaseConnection,
    names: &TableNames,
    consumer: &str,
    limit: u32,
) -> Result<Vec<DeadLetter>, DbErr> {
    let backend = db.get_database_backend();
    let inbox = InboxSql::new(backend, names, std::time::Duration::ZERO);
    let (created, headers) = match backend {
        DbBackend::Postgres => (
            "(extract(epoch FROM created_at) * 1000000)::int8",
            "headers::text",
        ),
        DbBackend::MySql => (
            "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', created_at)",
            "headers",
        ),
        _ => ("created_at", "headers"),
    };
    let mut sql = inbox.sql(format!(
        "SELECT id, message_id, subject, position, {headers} AS headers, payload, error, attempts, \
         {created} AS created_micros FROM {} WHERE consumer = ",
        inbox.dead_letters()
    ));
    sql.bind(inbox.key(consumer))
        .push(" ORDER BY created_at, position LIMIT ")
        .bind(i64::from(limit));
    db.query_all_raw(sql.statement())
        .await?
        .iter()
        .map(|row| read(row, consumer))
        .collect()
}

fn read(row: &QueryResult, consumer: &str) -> Result<DeadLetter, DbErr> {
    let headers: String = row.try_get("", "headers")?;
    let micros: i64 = row.try_get("", "created_micros")?;
    let created_at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000);
    Ok(DeadLetter {
        id: row.try_get("", "id")?,
        consumer: consumer.to_owned(),
        message_id: row
            .try_get::<Option<Uuid>>("", "message_id")?
            .map(MessageId::from),
        subject: row.try_get("", "subject")?,
        position: row.try_get::<i64>("", "position")?.cast_unsigned(),
        headers: serde_json::from_str(&headers).map_err(|error| DbErr::Json(error.to_string()))?,
        payload: row.try_get("", "payload")?,
        error: row.try_get("", "error")?,
        attempts: u32::try_from(row.try_get::<i32>("", "attempts")?).unwrap_or_default(),
        created_at: created_at.map_err(|error| DbErr::Type(error.to_string()))?,
    })
}

/// What becomes a dead letter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letter<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) message_id: Option<MessageId>,
    pub(crate) incoming: &'a Incoming,
    /// Passed through [`storable_error`] already, because it is also `last_error`.
    pub(crate) error: &'a str,
    pub(crate) attempts: u32,
}

/// Writes a dead letter, unless it is there already; returns whether it did.
pub(crate) async fn insert<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &Letter<'_>,
) -> Result<bool, DbErr> {
    let incoming = letter.incoming;
    let headers = serde_json::to_string(&incoming.headers).map_err(|error| DbErr::Json(error.to_string()))?;
    let mut sql = inbox.sql("INSERT INTO ");
    sql.push(inbox.dead_letters()).push(
        " (id, consumer, message_id, subject, position, headers, payload, error, attempts, created_at) VALUES (",
    );
    sql.bind(id(letter, &headers))
        .push(", ")
        .bind(inbox.key(letter.consumer))
        .push(", ");
    sql.bind(letter.message_id.map(|id| id.as_uuid())).push(", ");
    // PostgreSQL's text cannot hold NUL, which subjects can.
    sql.bind(incoming.subject.replace('\0', "\u{fffd}")).push(", ");
    sql.bind(incoming.position.cast_signed()).push(", ");
    sql.bind(headers).push(if inbox.backend() == DbBackend::Postgres {
        "::text::json, "
    } else {
        ", "
    });
    sql.bind(incoming.payload.to_vec()).push(", ");
    sql.bind(storable_error(letter.error))
        .push(", ")
        .bind(integer(letter.attempts));
    sql.push(&format!(", {})", inbox.now()));
    inbox.insert_once(db, sql).await
}

/// Namespace of the keys. Stored, so it never changes.
const DEAD_LETTERS: Uuid = Uuid::from_u128(0x5b0c_8d0e_2f43_5a77_9d1c_7a64_1f0e_c2b9);

fn id(letter: &Letter<'_>, headers: &str) -> Uuid {
    let mut name = Vec::new();
    // Lengths first, so that different parts never run into the same bytes.
    let mut part = |bytes: &[u8]| {
        name.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        name.extend_from_slice(bytes);
    };
    part(letter.consumer.as_bytes());
    match letter.message_id {
        Some(id) => part(id.as_uuid().as_bytes()),
        None => {
            part(letter.incoming.subject.as_bytes());
            part(&letter.incoming.position.to_be_bytes());
            part(headers.as_bytes());
            part(&letter.incoming.payload);
        }
    }
    Uuid::new_v5(&DEAD_LETTERS, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(position: u64, payload: &'static [u8]) -> Incoming {
        Incoming {
            subject: "events.x".to_owned(),
            headers: Vec::new(),
            payload: payload.into(),
            delivery_count: 1,
            position,
        }
    }

    #[test]
    fn a_letter_has_one_key_however_often_it_is_delivered() {
        let key = |consumer, message_id, incoming: &Incoming| {
            id(
                &Letter {
                    consumer,
                    message_id,
                    incoming,
                    error: "",
                    attempts: 0,
                },
                "[]",
            )
        };
        let (first, again) = (
            incoming(1, b"a"),
            Incoming {
                delivery_count: 2,
                ..incoming(1, b"a")
            },
        );
        assert_eq!(key("a", None, &first), key("a", None, &again));
        assert_ne!(key("a", None, &first), key("b", None, &first));
        assert_ne!(key("a", None, &first), key("a", None, &incoming(2, b"a")));
        assert_ne!(key("a", None, &first), key("a", None, &incoming(1, b"b")));
        let message_id = Some(MessageId::from(Uuid::from_u128(1)));
        assert_eq!(
            key("a", message_id, &first),
            key("a", message_id, &incoming(9, b"z"))
        );
    }
}

//! Dead letters: messages that a consumer could not handle.
//!
//! Invariant: one dead letter per message and consumer, written in the transaction that sets the
//! inbox row to `dead`. The dead letter's key is derived from consumer and event id or, without a
//! message, from the entire delivery: a stream sequence would collide after the stream is
//! recreated.
//!
//! ```text
//!               retry (operator)
//!        open ───────────────────► to be tried again ──► gone, the inbox row is handled
//!        │  ▲                        │  │                (claimed in the handler's transaction)
//!        │  └────────────────────────┘  │
//!        │   cancel_retry, failed again │
//!        └──────────► gone ◄────────────┘
//!             discard, erase; the inbox row stays dead
//! ```

mod admin;
pub(crate) mod retry;
mod selection;
mod size_limit;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use outbox_core::store::storable_error;
use outbox_core::{Aggregate, EventId, Incoming, MaskedPayload, Message, SensitiveFields, codec};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Trouble, timed_out, trouble};
use crate::dedup::sql::{InboxSql, integer};
use crate::handler::describe;

pub(crate) use admin::LIST_MAX;
pub use admin::{DeadLetters, ErasedDeadLetters};
pub(crate) use retry::StoredDeadLetter;
#[cfg(test)]
pub(crate) use selection::count_selected;
pub use selection::{DeadLetterSelection, LetterPlace};
pub(crate) use selection::{ORDER, read_place, select_places};
pub(crate) use size_limit::without_payload;

/// A message that a consumer could not handle.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Key of the dead letter.
    pub id: Uuid,
    /// Name of the consumer.
    pub consumer: String,
    /// Event id; `None` if the delivery is no outbox message.
    pub event_id: Option<EventId>,
    /// Event type; `None` if the delivery is no outbox message.
    pub event_type: Option<String>,
    /// Aggregate; `None` if the delivery is no outbox message.
    pub aggregate: Option<Aggregate>,
    /// Sequence of the event in its aggregate, if present.
    pub sequence: Option<u64>,
    /// Subject of the delivery, with NUL replaced; escaped and shortened if the database rejects
    /// it.
    pub subject: String,
    /// Stream sequence of the delivery.
    pub stream_sequence: u64,
    /// Headers of the delivery, unmasked.
    pub headers: Vec<(String, String)>,
    payload: Vec<u8>,
    /// Error of the last attempt, at most 1,000 characters.
    pub error: String,
    /// Failed attempts; 0 if no handler ran.
    pub attempts: u32,
    /// Status: whether a retry is pending.
    pub status: DeadLetterStatus,
    /// Time when the message was dead-lettered, by the database's clock.
    pub created_at: OffsetDateTime,
}

impl DeadLetter {
    /// The payload for display: JSON without the values of sensitive fields. If the payload is not
    /// decodable or `fields` lacks its event, only the payload's size. [`SensitiveFields::linked`]
    /// contains the events of this program.
    #[must_use]
    pub fn masked_payload(&self, fields: &SensitiveFields) -> MaskedPayload {
        match codec::decode(&self.headers, Bytes::copy_from_slice(&self.payload)) {
            Ok(message) => fields.mask_message(&message),
            Err(_) => MaskedPayload::UnknownEvent {
                bytes: self.payload.len(),
            },
        }
    }

    pub(crate) fn place(&self) -> LetterPlace {
        (self.created_at, self.stream_sequence, self.id)
    }

    /// The payload as received, **unmasked**. Empty if MySQL or MariaDB rejected its size
    /// (`max_allowed_packet`). In this case the header `outbox-payload-omitted` contains the
    /// payload's length, and a retry fails. The message is on the stream at `stream_sequence`.
    #[must_use]
    pub fn raw_payload(&self) -> &[u8] {
        &self.payload
    }
}

impl std::fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers and payload may contain personal data.
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("consumer", &self.consumer)
            .field("event_id", &self.event_id)
            .field("event_type", &self.event_type)
            .field("aggregate", &self.aggregate)
            .field("sequence", &self.sequence)
            .field("subject", &self.subject)
            .field("stream_sequence", &self.stream_sequence)
            .field("payload_bytes", &self.payload.len())
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("status", &self.status)
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// Status of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadLetterStatus {
    /// The dead letter awaits a decision of an operator.
    Open,
    /// The dead letter is marked: an inbox of its consumer retries it.
    Retry,
}

const OPEN: i16 = 0;
const RETRY: i16 = 1;

#[derive(Debug, Clone, Copy)]
pub(crate) struct NewDeadLetter<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) message: Option<&'a Message>,
    pub(crate) incoming: &'a Incoming,
    pub(crate) error: &'a str,
    pub(crate) attempts: u32,
}

impl<'a> NewDeadLetter<'a> {
    fn shortened<'b>(self, short: Option<&'b (Incoming, String)>) -> NewDeadLetter<'b>
    where
        'a: 'b,
    {
        match short {
            Some((incoming, error)) => NewDeadLetter {
                incoming,
                error,
                ..self
            },
            None => self,
        }
    }

    pub(crate) fn id(&self) -> Result<Uuid, DbErr> {
        Ok(match self.message {
            Some(message) => id_of_message(self.consumer, message.event_id.as_uuid()),
            None => derived(&[
                self.consumer.as_bytes(),
                self.incoming.subject.as_bytes(),
                &self.incoming.stream_sequence.to_be_bytes(),
                headers_json(self.incoming)?.as_bytes(),
                &self.incoming.payload,
            ]),
        })
    }
}

fn headers_json(incoming: &Incoming) -> Result<String, DbErr> {
    serde_json::to_string(&incoming.headers).map_err(|error| DbErr::Json(error.to_string()))
}

/// Inserts a dead letter. If an open transaction has inserted the same primary key, the insert
/// waits for its end. Contents that the database rejects are inserted as [`Form::Plain`], or the
/// message would be dead-lettered again forever.
pub(crate) async fn insert(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    letter: &NewDeadLetter<'_>,
) -> Result<bool, DbErr> {
    insert_whole_or_plain(db, inbox, letter, false).await
}

pub(crate) async fn insert_in(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    letter: &NewDeadLetter<'_>,
) -> Result<bool, DbErr> {
    insert_whole_or_plain(tx, inbox, letter, true).await
}

/// The savepoint lets PostgreSQL continue a transaction after an error.
async fn insert_whole_or_plain<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &NewDeadLetter<'_>,
    in_transaction: bool,
) -> Result<bool, DbErr> {
    let id = letter.id()?;
    let short = size_limit::shortened(db, letter, &headers_json(letter.incoming)?).await?;
    let letter = &letter.shortened(short.as_ref());
    if in_transaction {
        db.execute_unprepared("SAVEPOINT outbox_letter").await?;
    }
    match insert_as(db, inbox, id, letter, Form::Whole).await {
        Err(error) if is_refusal(&error) => {
            refused(letter, &error);
            if in_transaction {
                db.execute_unprepared("ROLLBACK TO SAVEPOINT outbox_letter")
                    .await?;
            }
            insert_as(db, inbox, id, letter, Form::Plain).await
        }
        outcome => outcome,
    }
}

/// Whether the database rejected the contents. A timeout is not a rejection.
fn is_refusal(error: &DbErr) -> bool {
    trouble(error) == Trouble::Statement && !timed_out(error)
}

fn refused(letter: &NewDeadLetter<'_>, error: &DbErr) {
    tracing::warn!(
        consumer = letter.consumer,
        stream_sequence = letter.incoming.stream_sequence,
        error = %describe(error),
        "database rejected a dead letter; stored without its decoded fields"
    );
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Whole,
    /// Dead letter in ASCII only, without event type and other values decoded from the message.
    Plain,
}

async fn insert_as<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    id: Uuid,
    letter: &NewDeadLetter<'_>,
    form: Form,
) -> Result<bool, DbErr> {
    let incoming = letter.incoming;
    let headers = headers_json(incoming)?;
    let mut sql = inbox.sql("INSERT INTO ");
    sql.push(inbox.dead_letters()).push(
        " (id, consumer, event_id, event_type, aggregate_type, aggregate_id, sequence, source, subject, stream_sequence, headers, payload, \
         error, attempts, status, created_at) VALUES (",
    );
    sql.bind(id)
        .push(", ")
        .bind(inbox.key(letter.consumer))
        .push(", ");
    sql.bind(letter.message.map(|message| message.event_id.as_uuid()))
        .push(", ");
    let message = letter.message.filter(|_| form == Form::Whole);
    for name in [
        message.map(|message| message.event_type.as_str()),
        message.map(|message| message.aggregate.aggregate_type.as_str()),
        message.map(|message| message.aggregate.id.as_str()),
    ] {
        sql.bind(inbox.name(name)).push(", ");
    }
    let sequence = message.and_then(|message| message.sequence);
    sql.bind(sequence.map(u64::cast_signed)).push(", ");
    let source = sequence.map(|_| codec::source(&incoming.headers).unwrap_or_default());
    sql.bind(inbox.name(source.as_deref())).push(", ");
    sql.bind(match form {
        Form::Whole => incoming.subject.replace('\0', "\u{fffd}"),
        Form::Plain => storable_error(&incoming.subject.escape_default().to_string()),
    })
    .push(", ");
    sql.bind(incoming.stream_sequence.cast_signed()).push(", ");
    sql.bind(match form {
        Form::Whole => headers,
        Form::Plain => escaped_json(&headers),
    })
    .push(if inbox.backend() == DbBackend::Postgres {
        "::text::json, "
    } else {
        ", "
    });
    sql.bind(incoming.payload.to_vec()).push(", ");
    sql.bind(storable_error(&match form {
        Form::Whole => letter.error.to_owned(),
        Form::Plain => letter.error.escape_default().to_string(),
    }))
    .push(", ")
    .bind(integer(letter.attempts));
    sql.push(&format!(", {OPEN}, {})", inbox.now()));
    inbox.insert_once(db, sql).await
}

/// Escapes non-ASCII characters, which JSON has only in strings.
fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}

/// Namespace of the keys. It never changes, because the keys are stored.
const DEAD_LETTERS: Uuid = Uuid::from_u128(0x5b0c_8d0e_2f43_5a77_9d1c_7a64_1f0e_c2b9);

pub(crate) fn id_of_message(consumer: &str, event_id: Uuid) -> Uuid {
    derived(&[consumer.as_bytes(), event_id.as_bytes()])
}

fn derived(parts: &[&[u8]]) -> Uuid {
    let mut name = Vec::new();
    for part in parts {
        name.extend_from_slice(&(part.len() as u64).to_be_bytes());
        name.extend_from_slice(part);
    }
    Uuid::new_v5(&DEAD_LETTERS, &name)
}

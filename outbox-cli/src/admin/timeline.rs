//! History of an aggregate's events.
//!
//! Invariant: the cost is bounded by the requested events. For causes see
//! [`Question`](crate::admin::Question).

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::{
    Aggregate, EventId, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage, describe,
};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, Statement, Value};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::holes::{self, Hole};
use crate::admin::messages::MessageRow;
use crate::admin::next::Command;
use crate::admin::of_aggregate::of_aggregate;
use crate::admin::serial;
use crate::admin::stream_view::{StreamView, answered};
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, counted, utc};

/// Events of an aggregate, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregate id.
    pub aggregate_id: String,
    /// Last assigned sequence, if any.
    pub last_sequence: Option<u64>,
    /// Events.
    pub events: Vec<TimelineEvent>,
    /// Whether all events found are listed.
    pub is_complete: bool,
    /// Missing sequences after the first event. Whether their events were published is unknown.
    pub holes: Vec<Hole>,
    /// Sources that could not be read.
    pub unseen: Vec<String>,
}

/// An event or a replayed copy, with its history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineEvent {
    /// The message.
    #[serde(flatten)]
    pub row: MessageRow,
    /// Stream sequence, if on the stream.
    pub stream_sequence: Option<u64>,
    /// Whether a published or logged message was not found on the stream.
    #[serde(skip)]
    pub is_not_on_stream: bool,
    /// Results per consumer.
    pub effects: Vec<Effect>,
}

/// Result at a consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// Consumer name.
    pub consumer: String,
    /// Outcome at this consumer.
    pub outcome: EffectOutcome,
    /// Failed attempts.
    pub attempts: u64,
    /// Outcome time.
    #[serde(serialize_with = "serial::time_if_any")]
    pub at: Option<OffsetDateTime>,
    /// Last error.
    pub error: Option<String>,
}

impl Effect {
    /// For example `billing: failed +0.041s after 1 failed attempt: no price`.
    fn text(&self, recorded_at: OffsetDateTime) -> String {
        let mut text = format!("{}: {}", self.consumer, self.outcome);
        if let Some(at) = self.at {
            text = format!("{text} {}", since(recorded_at, at));
        }
        if let Some(error) = &self.error {
            let attempts = counted(self.attempts, "failed attempt", "failed attempts");
            text = format!("{text} after {attempts}: {error}");
        }
        text
    }
}

fn since(recorded_at: OffsetDateTime, at: OffsetDateTime) -> String {
    format!("{:+.3}s", (at - recorded_at).as_seconds_f64())
}

impl Columns for TimelineEvent {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("recorded", |event| utc(event.row.recorded_at)),
        Column::new("sequence", |event| {
            any(event.row.sequence.map(|sequence| format!("#{sequence}")))
        }),
        Column::linked(
            "type",
            |event| event.row.event_type.clone(),
            |event| Some(Command::from("outbox show").arg(event.row.id)),
        ),
        Column::new("status", |event| event.row.status.as_str().to_owned()),
        Column::new("published", |event| {
            let published = event.row.published_at;
            any(published.map(|at| since(event.row.recorded_at, at)))
        }),
        Column::new("stream", |event| match event.is_not_on_stream {
            true => "missing".to_owned(),
            false => any(event.stream_sequence),
        }),
        Column::new("effects", |event| {
            let effects = event.effects.iter();
            let effects: Vec<String> = effects.map(|effect| effect.text(event.row.recorded_at)).collect();
            effects.join("; ")
        }),
        Column::new("error", |event| any(event.row.error.as_ref())),
        Column::new("id", |event| event.row.id.to_string()),
    ];
}

/// Consumer outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectOutcome {
    /// Handled.
    Handled,
    /// Failed.
    Failed,
    /// A dead letter.
    DeadLetter,
    /// Acknowledged without an inbox row: no handler, a strategy without rows, or a deleted row.
    Passed,
    /// Event not reached, or excluded by the consumer's filters.
    Open,
}

impl fmt::Display for EffectOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Inbox row.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectRow {
    /// Event id.
    pub event_id: EventId,
    /// Consumer result.
    pub effect: Effect,
}

impl Timeline {
    /// Up to `limit` events of an aggregate.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn of(
        store: &impl OutboxReader,
        aggregate: &Aggregate,
        selection: Selection,
        limit: NonZeroU32,
    ) -> Result<Self, StoreError> {
        let head = store.head(aggregate).await?;
        let listed = of_aggregate(store, aggregate, head.as_ref(), &selection, limit).await?;
        let end = head.as_ref().filter(|_| !listed.has_more);
        let mut unseen = listed.unseen;
        let holes = match holes::of_rows(store, aggregate, &listed.messages, end).await {
            Ok(Some(holes)) => holes,
            Ok(None) => {
                unseen.push(holes::NOT_KNOWN.to_owned());
                Vec::new()
            }
            Err(error) => {
                unseen.push(format!("missing sequences: {}", describe(&error)));
                Vec::new()
            }
        };
        Ok(Self {
            holes,
            aggregate_type: aggregate.aggregate_type.clone(),
            aggregate_id: aggregate.id.clone(),
            last_sequence: head.map(|head| head.last_sequence),
            events: listed.messages.into_iter().map(TimelineEvent::new).collect(),
            is_complete: !listed.has_more,
            unseen,
        })
    }

    /// Adds stream sequences and consumer results. Waits up to `patience` per answer; missing
    /// answers go to [`unseen`](Self::unseen).
    pub async fn follow(&mut self, store: &impl OutboxReader, stream: &dyn StreamView, patience: Duration) {
        // The first stream error ends the lookups.
        if let Err(error) = self.locate(store, stream, patience).await {
            self.unseen.push(format!("the stream: {error}"));
        }
        let mut events = self.events.iter();
        if !events.any(|event| event.stream_sequence.is_some()) {
            return;
        }
        match answered(patience, stream.inboxes(&self.event_ids())).await {
            Ok(view) => {
                self.join(&view.rows, &view.floors);
                self.unseen.extend(view.unseen);
            }
            Err(error) => self.unseen.push(format!("inboxes: {error}")),
        }
    }

    async fn locate(
        &mut self,
        store: &impl OutboxReader,
        stream: &dyn StreamView,
        patience: Duration,
    ) -> Result<(), String> {
        for event in &mut self.events {
            if !matches!(event.row.status, MessageStatus::Published | MessageStatus::Logged) {
                continue;
            }
            let found = async {
                let found = store.find(event.row.id).await.map_err(|error| describe(&error))?;
                match found.and_then(|found| found.message.ok()) {
                    Some(message) => stream.locate(&message).await.map(Some),
                    None => Ok(None),
                }
            };
            if let Some(found) = answered(patience, found).await? {
                event.stream_sequence = found;
                event.is_not_on_stream = found.is_none();
            }
        }
        Ok(())
    }
}

impl TimelineEvent {
    fn new(stored: StoredMessage) -> Self {
        Self {
            row: stored.into(),
            stream_sequence: None,
            is_not_on_stream: false,
            effects: Vec::new(),
        }
    }
}

impl Timeline {
    pub(crate) fn join(&mut self, rows: &[EffectRow], floors: &[(String, u64)]) {
        for event in &mut self.events {
            let known = rows.iter().filter(|row| row.event_id == event.row.event_id);
            event.effects = known.map(|row| row.effect.clone()).collect();
            let Some(stream_sequence) = event.stream_sequence else {
                continue;
            };
            for (consumer, floor) in floors {
                if event.effects.iter().any(|effect| effect.consumer == *consumer) {
                    continue;
                }
                let outcome = match *floor >= stream_sequence {
                    true => EffectOutcome::Passed,
                    false => EffectOutcome::Open,
                };
                event.effects.push(Effect {
                    consumer: consumer.clone(),
                    outcome,
                    attempts: 0,
                    at: None,
                    error: None,
                });
            }
            event
                .effects
                .sort_by(|one, other| one.consumer.cmp(&other.consumer));
        }
    }

    fn event_ids(&self) -> Vec<EventId> {
        self.events.iter().map(|event| event.row.event_id).collect()
    }
}

const IDS_MAX: usize = 200;

/// Reads consumer results from a quoted table. Rows keyed by a strategy's own key are not found.
///
/// # Errors
///
/// `DbErr`, also if the table is missing.
pub async fn effects(
    db: &DatabaseConnection,
    table: &str,
    consumers: &[String],
    events: &[EventId],
) -> Result<Vec<EffectRow>, DbErr> {
    let mut rows = Vec::new();
    if consumers.is_empty() {
        return Ok(rows);
    }
    for events in events.chunks(IDS_MAX) {
        let statement = read_effects(db.get_database_backend(), table, consumers, events);
        for row in db.query_all_raw(statement).await? {
            let id: String = row.try_get("", "id")?;
            let Some(event_id) = events.iter().copied().find(|event| is_same(*event, &id)) else {
                continue;
            };
            let at: i64 = row.try_get("", "at")?;
            let attempts: i64 = row.try_get("", "attempts")?;
            rows.push(EffectRow {
                event_id,
                effect: Effect {
                    consumer: row.try_get("", "consumer")?,
                    outcome: match row.try_get::<i64>("", "status")? {
                        1 => EffectOutcome::Handled,
                        2 => EffectOutcome::DeadLetter,
                        _ => EffectOutcome::Failed,
                    },
                    attempts: u64::try_from(attempts).unwrap_or_default(),
                    at: OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1_000).ok(),
                    error: row.try_get("", "last_error")?,
                },
            });
        }
    }
    Ok(rows)
}

fn is_same(event: EventId, text: &str) -> bool {
    Uuid::parse_str(text).is_ok_and(|id| id == event.as_uuid())
}

fn read_effects(backend: DbBackend, table: &str, consumers: &[String], events: &[EventId]) -> Statement {
    let columns = match backend {
        DbBackend::Postgres => {
            "CAST(consumer AS text) AS consumer, CAST(id AS text) AS id, CAST(status AS bigint) AS status, \
             CAST(attempts AS bigint) AS attempts, last_error, CAST(extract(epoch FROM processed_at) OPERATOR(pg_catalog.*) 1000000 AS bigint) AS at"
        }
        DbBackend::MySql => {
            "CONVERT(consumer USING utf8mb4) AS consumer, LOWER(HEX(id)) AS id, CAST(status AS SIGNED) AS status, \
             CAST(attempts AS SIGNED) AS attempts, last_error, \
             CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', processed_at) AS SIGNED) AS at"
        }
        _ => "consumer, lower(hex(id)) AS id, status, attempts, last_error, processed_at AS at",
    };
    let (mut values, mut places): (Vec<Value>, Vec<String>) = (Vec::new(), Vec::new());
    for consumer in consumers {
        values.push(match backend {
            DbBackend::MySql => consumer.as_bytes().to_vec().into(),
            _ => consumer.as_str().into(),
        });
        places.push(match backend {
            DbBackend::Postgres => format!("${}", values.len()),
            _ => "?".to_owned(),
        });
    }
    let consumers = places.join(", ");
    places.clear();
    for event in events {
        values.push(match backend {
            DbBackend::Postgres => event.to_string().into(),
            _ => event.as_uuid().as_bytes().to_vec().into(),
        });
        places.push(match backend {
            DbBackend::Postgres => format!("CAST(${} AS uuid)", values.len()),
            _ => "?".to_owned(),
        });
    }
    let sql = format!(
        "SELECT {columns} FROM {table} WHERE consumer IN ({consumers}) AND id IN ({}) ORDER BY consumer",
        places.join(", ")
    );
    Statement::from_sql_and_values(backend, sql, values)
}

//! `outbox timeline`: what became of the events of an aggregate, from the save to the effect of each consumer.
//!
//! Invariant: nothing is changed or received. Inboxes are looked for in the database of the outbox, and in those of other outboxes of the file with the same
//! stream.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use futures_util::TryStreamExt as _;
use outbox::core::{Aggregate, EventId, Message, Selection, StreamSearch as _, describe};
use outbox::nats::async_nats::{Client, jetstream};
use outbox_admin::web::InboxView;
use outbox_admin::{Effect, EffectRow, Timeline, TimelineEvent, effects, follow_ups, quoted};
use time::OffsetDateTime;

use super::arguments::{LimitArguments, PlaceArguments, parse_aggregate, parse_time};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::hint;
use crate::output::{self, Column, Print, plain, say_next};

/// Arguments of `outbox timeline`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct TimelineCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The aggregate, such as `order/4711`.
    #[arg(value_name = "TYPE/ID", value_parser = parse_aggregate)]
    pub aggregate: Aggregate,
    /// Only events that were recorded at this time or later: `2h` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<OffsetDateTime>,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

impl TimelineCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        // One connection for all look-ups, made when the first published event is found.
        let publisher = tokio::sync::OnceCell::new();
        let locate = async |message: &Message| {
            let publisher = publisher.get_or_try_init(async || place.publisher().await).await;
            let publisher = publisher.map_err(|error| error.to_string())?;
            publisher.locate(message).await.map_err(|error| describe(&error))
        };
        let selection = match self.since {
            Some(since) => Selection::all().recorded_from(since),
            None => Selection::all(),
        };
        let reading =
            outbox_admin::timeline(&place.store, locate, &self.aggregate, selection, self.limit.limit);
        let mut timeline = place.ask(reading).await?;
        if timeline
            .events
            .iter()
            .any(|event| event.stream_sequence.is_some())
        {
            let view = read_inboxes(&place, &self.place, &timeline.event_ids()).await?;
            timeline.join(&view.rows, &view.floors);
            timeline.unseen.extend(view.unseen);
            place.ask(follow_ups(&place.store, &mut timeline)).await?;
        }
        output::one(self.place.output, &timeline)?;
        if timeline.events.is_empty() {
            say_next(format!("outbox why {}", quoted(&self.aggregate.to_string())));
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Well)
    }
}

/// What the inboxes of the stream's consumers say about events: those of all `places` with the stream of this one.
pub(super) async fn inboxes(
    place: &Place,
    places: &[Place],
    client: Client,
    events: &[EventId],
) -> InboxView {
    let mut view = InboxView::default();
    match tokio::time::timeout(place.timeout, floors(place, client)).await {
        Ok(Ok(floors)) => view.floors = floors.into_iter().collect(),
        Ok(Err(error)) => view.unseen.push(format!("consumers of the stream: {error}")),
        Err(_) => {
            let unanswered = format!("consumers of the stream: no answer within {:?}", place.timeout);
            view.unseen.push(unanswered);
        }
    }
    if !view.unseen.is_empty() {
        return view;
    }
    let consumers: Vec<String> = view.floors.iter().map(|(consumer, _)| consumer.clone()).collect();
    (view.rows, view.unseen) = rows(place, places, &consumers, events).await;
    view
}

/// Reads what the inboxes of these consumers hold about events. The inboxes are in the databases of those `places` that have the stream of this one. Also returns
/// what could not be looked at.
pub(super) async fn rows(
    place: &Place,
    places: &[Place],
    consumers: &[String],
    events: &[EventId],
) -> (Vec<EffectRow>, Vec<String>) {
    let (mut rows, mut unseen) = (Vec::new(), Vec::new());
    for other in places.iter().filter(|other| other.has_stream_of(place)) {
        let db = other.store.connection();
        let found = match other.outbox.table_names() {
            Ok(names) => {
                let table = names.table(db.get_database_backend(), "inbox_messages");
                other.ask(effects(db, &table, consumers, events)).await
            }
            Err(error) => Err(CommandError::configuration(error)),
        };
        match found {
            Ok(found) => rows.extend(found),
            Err(CommandError::Configuration(error) | CommandError::Failed(error)) => {
                unseen.push(format!("inboxes: {error}"));
            }
        }
    }
    (rows, unseen)
}

/// As [`inboxes`], in the databases of all outboxes of the configuration.
async fn read_inboxes(
    place: &Place,
    arguments: &PlaceArguments,
    events: &[EventId],
) -> Result<InboxView, CommandError> {
    let client = match place.client().await {
        Ok(client) => client,
        Err(error) => {
            return Ok(InboxView {
                unseen: vec![format!("consumers of the stream: {error}")],
                ..InboxView::default()
            });
        }
    };
    let places = everywhere(arguments).await?;
    Ok(inboxes(place, &places, client, events).await)
}

/// All outboxes of the configuration: their databases may hold inboxes.
pub(super) async fn everywhere(arguments: &PlaceArguments) -> Result<Vec<Place>, CommandError> {
    let everywhere = PlaceArguments {
        outbox: None,
        ..arguments.clone()
    };
    Place::open_all(&everywhere).await
}

/// The durable consumers of the stream, each with the stream sequence up to which it has acknowledged everything.
async fn floors(place: &Place, client: Client) -> Result<BTreeMap<String, u64>, String> {
    let stream = jetstream::new(client)
        .get_stream(&place.outbox.section.stream.name)
        .await;
    let stream = stream.map_err(|error| describe(&error))?;
    let consumers: Vec<_> = stream
        .consumers()
        .try_collect()
        .await
        .map_err(|error| describe(&error))?;
    let durables = consumers
        .into_iter()
        .filter(|info| info.config.durable_name.is_some());
    Ok(durables
        .map(|info| (info.name, info.ack_floor.stream_sequence))
        .collect())
}

/// The time since the event was recorded.
fn since(event: &TimelineEvent, time: OffsetDateTime) -> String {
    let seconds = (time - event.recorded_at).as_seconds_f64();
    format!("{seconds:+.3}s")
}

fn of_effect(event: &TimelineEvent, effect: &Effect) -> String {
    let mut text = effect.outcome.as_str().to_owned();
    if let Some(at) = effect.at {
        // Writing to a `String` does not fail.
        let _ = write!(text, " {}", since(event, at));
    }
    if let Some(error) = &effect.error {
        let attempts = text::counted(effect.attempts, "failed attempt", "failed attempts");
        let _ = write!(text, " after {attempts}: {error}");
    }
    text
}

impl Print for Timeline {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("aggregate", Print::name),
        Column::new("last_sequence", |timeline| text::any(timeline.last_sequence)),
        Column::new("events", |timeline| timeline.events.len().to_string()),
        Column::new("complete", |timeline| text::yes(timeline.is_complete)),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }

    fn text(&self) -> Option<String> {
        let held = text::counted(
            self.events.len().try_into().unwrap_or(u64::MAX),
            "event",
            "events",
        );
        let mut text = match self.last_sequence {
            Some(last) => format!(
                "{}: its last number is {last}; {held} in the outbox\n",
                plain(&self.name())
            ),
            None => format!("{}: {held} in the outbox\n", plain(&self.name())),
        };
        for event in &self.events {
            let number = event
                .sequence
                .map(|sequence| format!("#{sequence} "))
                .unwrap_or_default();
            // Writing to a `String` does not fail.
            let _ = writeln!(
                text,
                "{} {number}{} {}",
                text::time(event.recorded_at),
                plain(&event.event_type),
                event.id
            );
            let published = event.published_at.map(|time| format!(" {}", since(event, time)));
            let _ = writeln!(
                text,
                "    {}{}",
                event.status.as_str(),
                published.unwrap_or_default()
            );
            if let Some(error) = &event.error {
                let _ = writeln!(text, "    error: {}", plain(error));
            }
            if let Some(stream_sequence) = event.stream_sequence {
                let _ = writeln!(text, "    on the stream: {stream_sequence}");
            }
            if event.is_not_on_stream {
                text.push_str("    not on the stream\n");
                text.push_str(&hint::line(&format!("outbox why {}", event.id).into(), "      "));
            }
            for effect in &event.effects {
                let _ = writeln!(
                    text,
                    "    {}: {}",
                    plain(&effect.consumer),
                    plain(&of_effect(event, effect))
                );
            }
            for follow_up in &event.follow_ups {
                let _ = writeln!(
                    text,
                    "    follow-up: {} of {}/{} {} {}",
                    plain(&follow_up.event_type),
                    plain(&follow_up.aggregate_type),
                    plain(&follow_up.aggregate_id),
                    since(event, follow_up.recorded_at),
                    follow_up.id
                );
            }
        }
        for hole in &self.holes {
            let _ = writeln!(
                text,
                "no row: {}; it was deleted; not known: whether the event was published before",
                hole.numbers()
            );
        }
        if !self.is_complete {
            text.push_str("there are more; `--since` begins later, `--limit` shows more\n");
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "not seen: {}", plain(unseen));
        }
        Some(text)
    }
}

//! `outbox list` and `outbox show`: the messages of an outbox.

use clap::Args;
use outbox::core::{MessageId, PageFrom, Place as MessagePlace};
use outbox_admin::{Command, MessageDetail, MessageRow};

use super::arguments::{LimitArguments, PlaceArguments, SelectionArguments, StatusArgument, parse_id};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, say, say_next};

/// Arguments of `outbox list`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ListCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The messages.
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Only messages of this status.
    #[arg(long, value_enum)]
    pub status: Option<StatusArgument>,
    /// Only messages before this place, as the last line of the page before names it.
    #[arg(long, value_name = "ROW_ID.ID", value_parser = parse_place)]
    pub before: Option<MessagePlace>,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

impl ListCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let mut selection = self.selection.selection();
        selection.status = self.status.map(Into::into);
        let place = Place::open(&self.place).await?;
        let limit = self.limit.limit;
        let from = self.before.map_or(PageFrom::Newest, PageFrom::Before);
        let rows = place
            .ask(outbox_admin::page(&place.store, &selection, from, limit))
            .await?;
        output::many(self.place.output, &rows)?;
        if rows.len() == limit.get() as usize
            && let Some(last) = rows.last()
        {
            say(&format!(
                "there may be more: `--before {}.{}`",
                last.row_id, last.id
            ));
        }
        if rows.is_empty() {
            say("no message matches");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Well)
    }
}

fn parse_place(text: &str) -> Result<MessagePlace, String> {
    let malformed = || "no place in a list; it is a row id, a dot and the id of a message".to_owned();
    let (row_id, id) = text.split_once('.').ok_or_else(malformed)?;
    Ok(MessagePlace {
        row_id: row_id.parse().map_err(|_| malformed())?,
        id: parse_id(id).map_err(|_| malformed())?,
    })
}

/// Arguments of `outbox show`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ShowCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The message.
    #[arg(value_name = "MESSAGE", value_parser = parse_id)]
    pub id: MessageId,
    /// Show the payload too. Only of events that the program or the file (`events`) knows, with their sensitive fields masked.
    #[arg(long)]
    pub payload: bool,
}

impl ShowCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let shown = self.payload.then(|| place.shown());
        let detail = place
            .ask(outbox_admin::show(&place.store, self.id, shown.as_ref()))
            .await?;
        let Some(detail) = detail else {
            say(&format!("the outbox does not hold message {}", self.id));
            say_next(Command::from("outbox why").arg(self.id));
            return Ok(Outcome::NothingMatched);
        };
        output::one(self.place.output, &detail)?;
        Ok(Outcome::Well)
    }
}

/// The status, and whether the message halts its aggregate.
fn status(row: &MessageRow) -> String {
    let halts = if row.halts { ", halts" } else { "" };
    format!("{}{halts}", row.status.as_str())
}

impl Print for MessageRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("id", |row| row.id.to_string()),
        Column::new("status", status),
        Column::new("aggregate", |row| {
            format!("{}/{}", row.aggregate_type, row.aggregate_id)
        }),
        Column::new("number", |row| text::any(row.sequence)),
        Column::new("type", |row| row.event_type.clone()),
        Column::new("recorded", |row| text::time(row.recorded_at)),
        Column::new("error", |row| row.error.clone().unwrap_or_default()),
    ];

    fn name(&self) -> String {
        self.id.to_string()
    }
}

impl Print for MessageDetail {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("id", |detail| detail.row.id.to_string()),
        Column::new("status", |detail| status(&detail.row)),
        Column::new("aggregate", |detail| {
            format!("{}/{}", detail.row.aggregate_type, detail.row.aggregate_id)
        }),
        Column::new("number", |detail| text::any(detail.row.sequence)),
        Column::new("type", |detail| detail.row.event_type.clone()),
        Column::new("version", |detail| {
            text::any(detail.content.as_ref().map(|content| content.event_version))
        }),
        Column::new("partition", |detail| detail.partition.to_string()),
        Column::new("recorded", |detail| text::time(detail.row.recorded_at)),
        Column::new("published", |detail| {
            text::any(detail.row.published_at.map(text::time))
        }),
        Column::new("delayed_for", |detail| {
            text::any(detail.delayed_for.map(text::duration))
        }),
        Column::new("attempts", |detail| detail.row.attempts.to_string()),
        Column::new("failures", |detail| detail.row.failures.to_string()),
        Column::new("error", |detail| detail.row.error.clone().unwrap_or_default()),
        Column::new("damage", |detail| detail.damage.clone().unwrap_or_default()),
        Column::new("event_id", |detail| detail.row.event_id.to_string()),
        Column::new("row_id", |detail| detail.row.row_id.to_string()),
        Column::new("subject", |detail| {
            let content = detail.content.as_ref();
            text::any(content.and_then(|content| content.subject.clone()))
        }),
        Column::new("content_type", |detail| {
            text::any(
                detail
                    .content
                    .as_ref()
                    .map(|content| content.content_type.clone()),
            )
        }),
        Column::new("bytes", |detail| {
            text::any(detail.content.as_ref().map(|content| content.payload_bytes))
        }),
        Column::new("headers", |detail| {
            let headers = detail.content.iter().flat_map(|content| &content.headers);
            headers
                .map(|(name, value)| format!("{name}: {value}"))
                .collect::<Vec<_>>()
                .join("; ")
        }),
        Column::new("payload", |detail| {
            let content = detail.content.as_ref();
            text::any(content.and_then(|content| content.payload.clone()))
        }),
    ];

    fn name(&self) -> String {
        self.row.id.to_string()
    }

    fn text(&self) -> Option<String> {
        Some(text::lines(Self::COLUMNS, self))
    }
}

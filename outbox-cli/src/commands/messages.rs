//! `outbox list` and `outbox show`: messages of an outbox.

use crate::admin::{Command, MessageDetail, input};
use clap::Args;
use outbox::core::{MessageId, MessageStatus, PageFrom, Place as MessagePlace};

use super::arguments::{LimitArguments, PlaceArguments, SelectionArguments};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, say, say_next};

/// Arguments of `outbox list`.
#[derive(Debug, Clone, Args)]
pub struct ListCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The messages.
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Only messages of this status.
    #[arg(long, value_name = "STATUS", value_parser = input::status)]
    pub status: Option<MessageStatus>,
    /// Only messages before this position, as the previous page prints it.
    #[arg(long, value_name = "ROW_ID.ID", value_parser = input::place)]
    pub before: Option<MessagePlace>,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

impl ListCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let mut selection = self.selection.selection();
        selection.status = self.status;
        let place = Place::open(&self.place).await?;
        let limit = self.limit.limit;
        let from = self.before.map_or(PageFrom::Newest, PageFrom::Before);
        let rows = place
            .ask(crate::admin::page(&place.store, &selection, from, limit))
            .await?;
        output::list(self.place.output, &rows)?;
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
        Ok(Outcome::Done)
    }
}

/// Arguments of `outbox show`.
#[derive(Debug, Clone, Args)]
pub struct ShowCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The message.
    #[arg(value_name = "MESSAGE", value_parser = input::message_id)]
    pub id: MessageId,
    /// Also show the payload, with sensitive fields masked. Only for events of the program or the
    /// file (`events`).
    #[arg(long)]
    pub payload: bool,
}

impl ShowCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let shown = self.payload.then(|| place.shown());
        let detail = place
            .ask(crate::admin::show(&place.store, self.id, shown.as_ref()))
            .await?;
        let Some(detail) = detail else {
            say(&format!("the outbox has no message {}", self.id));
            say_next(Command::from("outbox why").arg(self.id));
            return Ok(Outcome::NothingMatched);
        };
        output::one(self.place.output, &detail)?;
        Ok(Outcome::Done)
    }
}

impl Print for MessageDetail {
    fn text(&self) -> String {
        text::lines(self)
    }
}

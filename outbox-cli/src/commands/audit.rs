//! `outbox audit`: recorded operations and their results.

use std::fmt::Write as _;

use crate::admin::{OperationDetail, input};
use clap::{Args, Subcommand};
use outbox::core::{OperationFilter, OperationId, OperationKind};
use outbox::inbox::{DeadLetters, InboxOperations};
use time::OffsetDateTime;

use super::arguments::{LimitArguments, PlaceArguments};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say};

/// Arguments of `outbox audit`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuditCommand {
    /// One operation.
    #[command(subcommand)]
    pub show: Option<AuditSubcommand>,
    /// The list.
    #[command(flatten)]
    pub list: ListOperationsCommand,
}

/// Subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum AuditSubcommand {
    /// Show an operation, and the present state of its messages or dead letters.
    Show(ShowOperationCommand),
}

/// List arguments.
#[derive(Debug, Clone, Args)]
pub struct ListOperationsCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only operations since this time: `7d` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: Option<OffsetDateTime>,
    /// Only operations of this actor.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Only operations of this kind, such as `retry`.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only operations before this operation, for the next page.
    #[arg(long, value_name = "OPERATION", value_parser = input::operation_id)]
    pub before: Option<OperationId>,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

/// Arguments of `outbox audit show`.
#[derive(Debug, Clone, Args)]
pub struct ShowOperationCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The operation.
    #[arg(value_name = "OPERATION", value_parser = input::operation_id)]
    pub id: OperationId,
}

impl AuditCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self.show {
            Some(AuditSubcommand::Show(command)) => command.run().await,
            None => self.list.run().await,
        }
    }
}

impl ListOperationsCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let mut filter = OperationFilter::default();
        filter.since = self.since;
        filter.actor = self.actor;
        filter.kind = self.kind.as_deref().map(OperationKind::from);
        filter.before = self.before;
        let limit = self.limit.limit;
        let listed = crate::admin::list_operations(&place.store, &filter, limit);
        let mut rows = place.ask(listed).await?;
        let of_inbox = inbox_operations(&place)?;
        let listed = crate::admin::list_inbox_operations(&of_inbox, &filter, limit);
        rows.extend(place.ask(listed).await?);
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        rows.truncate(limit.get() as usize);
        output::list(self.place.output, &rows)?;
        if let Some(last) = rows.last().filter(|_| rows.len() == limit.get() as usize) {
            say(&format!("there may be more: `--before {}`", last.id));
        }
        if rows.is_empty() {
            say("no operation matches");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Done)
    }
}

impl ShowOperationCommand {
    async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let shown = crate::admin::show_operation(&place.store, self.id);
        let mut found = place.ask(shown).await?;
        if found.is_none() {
            let names = place.outbox.table_names().map_err(CommandError::configuration)?;
            let letters = DeadLetters::new(place.store.connection().clone()).with_names(names);
            let of_inbox = inbox_operations(&place)?;
            let shown = crate::admin::show_inbox_operation(&of_inbox, &letters, self.id);
            found = place.ask(shown).await?;
        }
        let Some(detail) = found else {
            say("operation not found; `outbox audit` lists operations (a change without effect has none)");
            return Ok(Outcome::NothingMatched);
        };
        output::one(self.place.output, &detail)?;
        let is_retry = ["retry", "retry-letters"].contains(&detail.row.kind.as_str());
        let failed_again = is_retry && detail.dead > 0;
        Ok(if failed_again || !detail.row.is_finished {
            Outcome::Degraded
        } else {
            Outcome::Done
        })
    }
}

fn inbox_operations(place: &Place) -> Result<InboxOperations, CommandError> {
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    Ok(InboxOperations::new(place.store.connection().clone()).with_names(names))
}

impl Print for OperationDetail {
    fn text(&self) -> String {
        let mut text = text::lines(self);
        let _ = writeln!(text, "now: {}", self.outcome);
        for error in &self.errors {
            let _ = writeln!(text, "  {:>8}  error: {}", error.messages, plain(&error.error));
        }
        if self.errors_unlisted > 0 {
            let _ = writeln!(text, "  {:>8}  with other errors", self.errors_unlisted);
        }
        if let Some(next) = &self.next {
            text.push_str(&output::next_line(next, "  "));
        }
        text
    }
}

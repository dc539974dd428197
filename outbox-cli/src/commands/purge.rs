//! `outbox purge`: deletes the data of aggregates, with `--dead-letters` also their consumer
//! dead letters.
//!
//! Invariant: nothing changes without `--yes`, after a preview of the consequences.

use std::fmt::Write as _;

use crate::admin::{Command, input};
use clap::Args;
use outbox::core::{Aggregate, Operation, OperationKind, OperationScope, OutboxAudit as _};
use outbox::inbox::DeadLetters;
use serde::Serialize;

use super::arguments::PlaceArguments;
use super::intent::MakeArguments;
use super::outcome::{previewed, say_operation};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain};

/// Arguments of `outbox purge`.
#[derive(Debug, Clone, Args)]
pub struct PurgeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The aggregates, such as `customer/4711`; at most 1,000.
    #[arg(value_name = "TYPE/ID", required = true, value_parser = input::aggregate)]
    pub aggregates: Vec<Aggregate>,
    /// Also erase dead letters of consumers, if their tables are in the database of the outbox.
    #[arg(long)]
    pub dead_letters: bool,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl PurgeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let (mut plan, messages) = place
            .ask(crate::admin::preview_forget(&place.store, &self.aggregates))
            .await?;
        if self.make.yes {
            return self.apply(&place, plan.is_possible, messages).await;
        }
        plan.is_possible |= self.dead_letters;
        previewed(self.place.output, &plan)
    }

    async fn apply(&self, place: &Place, is_known: bool, messages: u64) -> Result<Outcome, CommandError> {
        // A purge without messages may still delete a sequence or a dead letter.
        self.make
            .confirm
            .check(place, async { Ok(messages.max(1)) })
            .await?;
        // One transaction deletes the rows of all aggregates. Dead letters follow, one aggregate at
        // a time; a second call continues.
        let scope = OperationScope::aggregates(&self.aggregates);
        let operation = Operation::new(OperationKind::Forget, scope, self.make.intent.intent());
        let forgotten = place.store.forget_as(&self.aggregates, &operation);
        let forgotten = place.carry_out(forgotten).await?;
        let is_written = forgotten.left.len() < self.aggregates.len();
        let operation = is_written.then_some(operation.id);
        let mut done = Forgot {
            change: "forget",
            messages: forgotten.messages,
            left: forgotten.left.iter().map(ToString::to_string).collect(),
            operation: operation.map(|id| id.to_string()),
            dead_letters: None,
            busy: 0,
            unattributed: 0,
        };
        if self.dead_letters {
            let names = place.outbox.table_names().map_err(CommandError::configuration)?;
            let letters = DeadLetters::new(place.store.connection().clone()).with_names(names);
            for aggregate in &self.aggregates {
                let scope = OperationScope::aggregates(std::slice::from_ref(aggregate));
                let operation = Operation::new(OperationKind::EraseLetters, scope, self.make.intent.intent());
                let letters = letters.clone().written_down(&operation);
                let erased = place.carry_out(letters.erase(aggregate)).await?;
                *done.dead_letters.get_or_insert(0) += erased.erased;
                done.busy += erased.busy;
                done.unattributed = erased.unattributed;
            }
        }
        output::one(self.place.output, &done)?;
        if let Some(operation) = operation {
            say_operation(operation);
        }
        let did_nothing = done.messages == 0 && done.dead_letters.unwrap_or_default() == 0;
        Ok(if !done.left.is_empty() || done.busy > 0 {
            Outcome::Degraded
        } else if did_nothing && !is_known {
            Outcome::NothingMatched
        } else {
            Outcome::Done
        })
    }
}

#[derive(Debug, Serialize)]
struct Forgot {
    change: &'static str,
    messages: u64,
    left: Vec<String>,
    /// `None` if all aggregates were left unchanged.
    operation: Option<String>,
    /// Number of erased dead letters, if requested.
    dead_letters: Option<u64>,
    /// Dead letters not erased because a consumer is retrying them.
    busy: u64,
    /// Dead letters without an aggregate, of any consumer.
    unattributed: u64,
}

impl Print for Forgot {
    fn text(&self) -> String {
        let mut text = format!(
            "{} deleted\n",
            text::counted(self.messages, "message is", "messages are")
        );
        for left in &self.left {
            let _ = writeln!(
                text,
                "{} is unchanged: one of its messages is pending, deferred, halting or logged (see `outbox relay log drop`)",
                plain(left)
            );
            text.push_str(&output::next_line(&Command::from("outbox why").arg(left), "  "));
        }
        if let Some(erased) = self.dead_letters {
            let _ = writeln!(
                text,
                "{} erased",
                text::counted(erased, "dead letter is", "dead letters are")
            );
        }
        if self.busy > 0 {
            let _ = writeln!(
                text,
                "{} being retried; re-run the command",
                text::counted(self.busy, "dead letter is", "dead letters are")
            );
        }
        if self.unattributed > 0 {
            let _ = writeln!(
                text,
                "{} no aggregate: outbox dead-letters list",
                text::counted(self.unattributed, "dead letter names", "dead letters name")
            );
        }
        text
    }
}

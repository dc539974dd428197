//! `outbox purge`: deletes published messages whose retention has passed, and with `--inbox` what consumers have remembered for long enough.
//!
//! Invariants: nothing is deleted without `--yes`, nor without an operation that counts it in the same transactions; and nothing before the time that the configuration
//! keeps it for.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use outbox::core::{Operation, OperationId, OperationKind, OperationScope, OutboxAudit as _, Retention};
use outbox::inbox::{ExpiredRecords, InboxOperations};
use outbox_admin::doctor::database_time;
use outbox_admin::{Change, InboxPurgePreview, InboxPurged};
use time::OffsetDateTime;

use super::arguments::{PlaceArguments, parse_duration};
use super::audit::parse_operation;
use super::change::say_operation;
use super::confirm::ConfirmArguments;
use super::doctor::nats;
use super::intent::IntentArguments;
use super::log;
use super::place::Place;
use super::progress::Progress;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, plain, say};

/// Arguments of `outbox purge`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PurgeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Delete what consumers remember and what has expired, instead of published messages. Their tables are beside the outbox.
    #[arg(long)]
    pub inbox: bool,
    /// Only what was recorded and published longer ago than this; by default, and at least, the `retention` of the file.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "inbox")]
    pub older_than: Option<Duration>,
    /// Only so many: try a few before the rest. `--sample` is the same.
    #[arg(long, visible_alias = "sample", value_name = "N")]
    pub first: Option<NonZeroU64>,
    /// Go on with this operation, which broke off, instead of a new one.
    #[arg(long, value_name = "OPERATION", value_parser = parse_operation, conflicts_with_all = ["older_than", "first", "actor", "reason"])]
    pub operation: Option<OperationId>,
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed in production.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

impl PurgeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        match self.inbox {
            true => self.purge_inbox(&place).await,
            false => self.purge_outbox(&place).await,
        }
    }

    async fn purge_outbox(&self, place: &Place) -> Result<Outcome, CommandError> {
        let operation = match self.operation {
            Some(id) => {
                let begun = place.ask(place.store.operation(id)).await?;
                let begun = begun.filter(|begun| begun.kind == OperationKind::Purge);
                if let Some(begun) = &begun {
                    self.check_retention(place, begun).await?;
                }
                begun
            }
            None => Some(self.outbox_operation(place).await?),
        };
        let operation = operation.ok_or_else(|| self.no_such("purge"))?;
        if operation.is_finished() {
            say("nothing is left of it");
            return Ok(Outcome::NothingMatched);
        }
        if !self.yes {
            return self.preview_outbox(place, &operation).await;
        }
        let count = async {
            let left = outbox_admin::preview_rest(&place.store, &operation);
            Ok(place.ask(left).await?.map_or(0, |preview| preview.messages))
        };
        self.confirm.check(place, count).await?;
        let progress = Progress::of(&self.place);
        let (id, begun) = (operation.id, operation.changed);
        let look = async |place: &Place| {
            let found = place.ask(place.store.operation(id)).await.ok()??;
            Some(found.changed.saturating_sub(begun))
        };
        // A crash or an error here leaves the transactions that were completed, and the operation says how many messages they have deleted.
        let purging = outbox_admin::carry_out(&place.store, Change::Purge, &operation);
        let purging = progress.watch(place, ("purge", None), look, place.carry_out(purging));
        let applied = purging.await.inspect_err(|_| self.broke_off(id))?;
        drop(progress);
        output::one(self.place.output, &applied)?;
        if applied.messages == 0 {
            say(NOTHING);
            return Ok(Outcome::NothingMatched);
        }
        say_operation(applied.operation);
        Ok(Outcome::Well)
    }

    async fn preview_outbox(&self, place: &Place, operation: &Operation) -> Result<Outcome, CommandError> {
        let preview = outbox_admin::preview_rest(&place.store, operation);
        let Some(mut preview) = place.ask(preview).await? else {
            return Ok(Outcome::NothingMatched);
        };
        let until = operation
            .scope
            .purges_before()
            .unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let logged = log::logged_between(place, OffsetDateTime::UNIX_EPOCH, until).await?;
        if logged > 0 {
            preview.effects.push(format!(
                "{} left: the log relay deletes what its position has passed",
                text::counted(logged, "logged message is", "logged messages are")
            ));
        }
        output::one(self.place.output, &preview)?;
        if preview.messages == 0 && preview.is_complete {
            say(NOTHING);
            return Ok(Outcome::NothingMatched);
        }
        say("nothing was changed; repeat it with `--yes`");
        Ok(Outcome::Well)
    }

    /// A new operation: what was published before the time that the configuration keeps it for, by the clock of the database.
    async fn outbox_operation(&self, place: &Place) -> Result<Operation, CommandError> {
        let age = older_than(place.outbox.section.relay.retention, self.older_than)?;
        let now = place.ask(database_time(place.store.connection())).await?;
        let age = time::Duration::try_from(age).map_err(CommandError::configuration)?;
        let before = now.checked_sub(age).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let scope = OperationScope::published_before(before);
        Ok(Change::Purge.operation(&scope.selection, self.first, self.intent.intent()))
    }

    /// The retention may have been raised since the operation began.
    async fn check_retention(&self, place: &Place, begun: &Operation) -> Result<(), CommandError> {
        let allowed = self.outbox_operation(place).await?;
        match begun.scope.purges_before() > allowed.scope.purges_before() {
            true => Err(CommandError::configuration(
                "the outbox keeps published messages for longer now than when the purge began (`retention`), so it must not go on; begin another one",
            )),
            false => Ok(()),
        }
    }

    fn no_such(&self, kind: &str) -> CommandError {
        let id = self.operation.map(|id| id.to_string()).unwrap_or_default();
        CommandError::configuration(format!(
            "there is no operation {id} that does `{kind}`; `outbox audit --kind {kind}` lists those that are there"
        ))
    }

    /// Says how to go on after an error.
    fn broke_off(&self, id: OperationId) {
        let inbox = if self.inbox { " --inbox" } else { "" };
        say(&format!(
            "if `outbox audit show {id}` knows the operation, go on with `outbox purge{inbox} --operation {id} --yes`; otherwise nothing was deleted"
        ));
    }
}

const NOTHING: &str = "nothing is published and old enough";

/// The age from which on published messages may be deleted.
fn older_than(retention: Retention, asked: Option<Duration>) -> Result<Duration, CommandError> {
    match (retention, asked) {
        (Retention::KeepFor(kept), Some(asked)) if asked < kept => Err(CommandError::configuration(format!(
            "the outbox keeps published messages for {} (`retention`), and `--older-than` is shorter; lower `retention` first, of the relay as well",
            text::duration(kept)
        ))),
        (Retention::KeepFor(kept), asked) => Ok(asked.unwrap_or(kept)),
        (Retention::Delete, asked) => Ok(asked.unwrap_or_default()),
        // A retention of a newer library may keep everything as well.
        _ => Err(CommandError::configuration(
            "the outbox keeps published messages for ever (`retention = \"forever\"`), so none may be deleted; set `retention` to a time first, of the relay as well",
        )),
    }
}

impl PurgeCommand {
    async fn purge_inbox(&self, place: &Place) -> Result<Outcome, CommandError> {
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let db = place.store.connection();
        let records = ExpiredRecords::new(db.clone()).with_names(names.clone());
        let operation = match self.operation {
            Some(id) => {
                let operations = InboxOperations::new(db.clone()).with_names(names);
                let begun = place.ask(operations.get(id)).await?;
                let begun = begun.filter(|begun| begun.kind == OperationKind::PurgeInbox);
                begun.ok_or_else(|| self.no_such("purge-inbox"))?
            }
            None => outbox_admin::inbox_purge_operation(self.first, self.intent.intent()),
        };
        if operation.is_finished() {
            say("nothing is left of it");
            return Ok(Outcome::NothingMatched);
        }
        let left = operation
            .left()
            .map(|left| NonZeroU64::new(left).unwrap_or(NonZeroU64::MIN));
        let refusals = match nats::memories(place).await {
            Ok((stream, consumers)) => outbox_admin::inbox_refusals(&stream, &consumers),
            Err(error) => vec![format!(
                "the stream could not be looked at, so whether it can still deliver what would be forgotten is not known: {error}"
            )],
        };
        let preview = outbox_admin::preview_inbox_purge(&records, left, refusals);
        let preview = place.ask(preview).await?;
        if !self.yes {
            return self.say_inbox(&preview);
        }
        if let Some(refusal) = preview.refusals.first() {
            return Err(CommandError::failed(format!(
                "nothing is deleted from the inbox: {refusal}"
            )));
        }
        // Records of dead messages are among them if their dead letters are gone.
        let most = preview.records.saturating_add(preview.dead);
        self.confirm.check(place, async { Ok(most) }).await?;
        let progress = Progress::of(&self.place);
        let total = preview.is_complete.then_some(preview.records);
        let mut show = |done| progress.show("purge", done, total);
        // A crash or an error here leaves the transactions that were completed, and the operation says how many records they have deleted.
        let purging = outbox_admin::apply_inbox_purge(&records, &operation, operation.changed, &mut show);
        let purging = place.carry_out(purging).await;
        drop(progress);
        let purged = purging.inspect_err(|_| self.broke_off(operation.id))?;
        output::one(self.place.output, &purged)?;
        if purged.records == 0 {
            say(NOTHING_EXPIRED);
            return Ok(Outcome::NothingMatched);
        }
        say_operation(purged.operation);
        Ok(Outcome::Well)
    }

    fn say_inbox(&self, preview: &InboxPurgePreview) -> Result<Outcome, CommandError> {
        output::one(self.place.output, preview)?;
        if preview.records == 0 && preview.dead == 0 && preview.is_complete {
            say(NOTHING_EXPIRED);
            return Ok(Outcome::NothingMatched);
        }
        if !preview.refusals.is_empty() {
            say("`--yes` would be refused");
            return Ok(Outcome::Degraded);
        }
        say("nothing was changed; repeat it with `--yes`");
        Ok(Outcome::Well)
    }
}

const NOTHING_EXPIRED: &str = "nothing has expired in the inbox";

impl Print for InboxPurgePreview {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", Print::name),
        Column::new("records", |preview| preview.records.to_string()),
        Column::new("complete", |preview| text::yes(preview.is_complete)),
        Column::new("dead", |preview| preview.dead.to_string()),
        Column::new("refusals", |preview| preview.refusals.join("; ")),
    ];

    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let bound = if self.is_complete { "" } else { "at least " };
        let records = text::counted(self.records, "expired record", "expired records");
        let mut text = format!("would delete {bound}{records} of the inbox\n");
        // Writing to a `String` does not fail.
        for (consumer, records) in &self.consumers {
            let _ = writeln!(text, "  {records:>8}  {}", plain(consumer));
        }
        for effect in &self.effects {
            let _ = writeln!(text, "  {}", plain(effect));
        }
        for refusal in &self.refusals {
            let _ = writeln!(text, "  refused: {}", plain(refusal));
        }
        Some(text)
    }
}

impl Print for InboxPurged {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("change", Print::name),
        Column::new("records", |purged| purged.records.to_string()),
        Column::new("operation", |purged| text::any(purged.operation)),
    ];

    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let records = text::counted(self.records, "record is deleted", "records are deleted");
        Some(format!("{records}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn nothing_is_deleted_before_its_time() {
        let age = |retention, asked| older_than(retention, asked).ok();
        assert_eq!(age(Retention::KeepFor(DAY), None), Some(DAY));
        assert_eq!(age(Retention::KeepFor(DAY), Some(2 * DAY)), Some(2 * DAY));
        assert_eq!(age(Retention::KeepFor(DAY), Some(DAY / 2)), None);
        assert_eq!(age(Retention::Keep, None), None);
        assert_eq!(age(Retention::Keep, Some(100 * DAY)), None);
        assert_eq!(age(Retention::Delete, None), Some(Duration::ZERO));
        assert_eq!(age(Retention::Delete, Some(DAY)), Some(DAY));
    }
}

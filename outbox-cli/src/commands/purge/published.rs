//! `outbox purge published`: deletes published messages whose retention has passed.
//!
//! Invariants: nothing is deleted without an operation that counts it in the same transactions, and nothing before the time that the configuration keeps it for.

use std::time::Duration;

use clap::Args;
use outbox::core::{Operation, OperationKind, OperationScope, OutboxAudit as _, Retention};
use outbox_admin::Change;
use outbox_admin::doctor::database_time;
use time::OffsetDateTime;

use super::super::arguments::parse_duration;
use super::super::change::say_operation;
use super::super::place::Place;
use super::super::relay::log::logged_between;
use super::super::text;
use super::{PurgeArguments, broke_off};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say};

/// Arguments of `outbox purge published`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PurgePublishedCommand {
    /// What the purges share.
    #[command(flatten)]
    pub arguments: PurgeArguments,
    /// Only what was recorded and published longer ago than this. At least, and by default, the `retention` of the file.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "operation")]
    pub older_than: Option<Duration>,
}

impl PurgePublishedCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let arguments = &self.arguments;
        let place = &Place::open_to_change(&arguments.place).await?;
        let operation = match arguments.operation {
            Some(id) => {
                let found = place.ask(place.store.operation(id)).await?;
                let begun = arguments.begun(found, &OperationKind::Purge)?;
                self.check_retention(place, &begun).await?;
                begun
            }
            None => self.new_operation(place).await?,
        };
        if operation.is_finished() {
            say("nothing is left of it");
            return Ok(Outcome::NothingMatched);
        }
        if !arguments.make.yes {
            return self.preview(place, &operation).await;
        }
        let count = async {
            let left = outbox_admin::preview_rest(&place.store, &operation);
            Ok(place.ask(left).await?.map_or(0, |preview| preview.messages))
        };
        arguments.make.confirm.check(place, count).await?;
        // A crash or an error here leaves the completed transactions, and the operation counts the messages that they deleted.
        let purging = outbox_admin::carry_out(&place.store, Change::Purge, &operation);
        let purging = place.carry_out(purging).await;
        let applied = purging.inspect_err(|_| broke_off("published", operation.id))?;
        output::one(arguments.place.output, &applied)?;
        if applied.messages == 0 {
            say(NOTHING);
            return Ok(Outcome::NothingMatched);
        }
        say_operation(applied.operation);
        Ok(Outcome::Well)
    }

    async fn preview(&self, place: &Place, operation: &Operation) -> Result<Outcome, CommandError> {
        let preview = outbox_admin::preview_rest(&place.store, operation);
        let Some(mut preview) = place.ask(preview).await? else {
            return Ok(Outcome::NothingMatched);
        };
        let until = operation
            .scope
            .purges_before()
            .unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let logged = logged_between(place, OffsetDateTime::UNIX_EPOCH, until).await?;
        if logged > 0 {
            preview.effects.push(format!(
                "{} left: the log relay deletes what its position has passed",
                text::counted(logged, "logged message is", "logged messages are")
            ));
        }
        output::one(self.arguments.place.output, &preview)?;
        if preview.messages == 0 && preview.is_complete {
            say(NOTHING);
            return Ok(Outcome::NothingMatched);
        }
        say("nothing was changed; repeat it with `--yes`");
        Ok(Outcome::Well)
    }

    /// A new operation: what was published before the time that the configuration keeps it for, by the clock of the database.
    async fn new_operation(&self, place: &Place) -> Result<Operation, CommandError> {
        let age = older_than(place.outbox.section.relay.retention, self.older_than)?;
        let now = place.ask(database_time(place.store.connection())).await?;
        let age = time::Duration::try_from(age).map_err(CommandError::configuration)?;
        let before = now.checked_sub(age).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let scope = OperationScope::published_before(before);
        Ok(Change::Purge.operation(
            &scope.selection,
            self.arguments.first,
            self.arguments.make.intent.intent(),
        ))
    }

    /// The retention may have been raised since the operation began.
    async fn check_retention(&self, place: &Place, begun: &Operation) -> Result<(), CommandError> {
        let allowed = self.new_operation(place).await?;
        match begun.scope.purges_before() > allowed.scope.purges_before() {
            true => Err(CommandError::configuration(
                "the outbox keeps published messages for longer now than when the purge began (`retention`), so it must not go on; begin another one",
            )),
            false => Ok(()),
        }
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

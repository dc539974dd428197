//! `outbox purge inbox`: deletes what consumers have remembered for long enough.
//!
//! Invariant: nothing is deleted from an inbox whose stream can still deliver it.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use outbox::core::OperationKind;
use outbox::inbox::{ExpiredRecords, InboxOperations};
use outbox_admin::{InboxPurgePreview, InboxPurged};

use super::super::change::say_operation;
use super::super::doctor::nats;
use super::super::place::Place;
use super::super::text;
use super::{PurgeArguments, broke_off};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Format, Print, plain, say};

pub(super) async fn run(arguments: &PurgeArguments) -> Result<Outcome, CommandError> {
    let place = &Place::open_to_change(&arguments.place).await?;
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    let db = place.store.connection();
    let records = ExpiredRecords::new(db.clone()).with_names(names.clone());
    let operation = match arguments.operation {
        Some(id) => {
            let operations = InboxOperations::new(db.clone()).with_names(names);
            let found = place.ask(operations.get(id)).await?;
            arguments.begun(found, &OperationKind::PurgeInbox)?
        }
        None => outbox_admin::inbox_purge_operation(arguments.first, arguments.make.intent.intent()),
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
    if !arguments.make.yes {
        return say_preview(arguments.place.output, &preview);
    }
    if let Some(refusal) = preview.refusals.first() {
        return Err(CommandError::failed(format!(
            "nothing is deleted from the inbox: {refusal}"
        )));
    }
    // Records of dead messages are among them if their dead letters are gone.
    let most = preview.records.saturating_add(preview.dead);
    arguments.make.confirm.check(place, async { Ok(most) }).await?;
    // A crash or an error here leaves the completed transactions, and the operation counts the records that they deleted.
    let purging = outbox_admin::apply_inbox_purge(&records, &operation, operation.changed);
    let purging = place.carry_out(purging).await;
    let purged = purging.inspect_err(|_| broke_off("inbox", operation.id))?;
    output::one(arguments.place.output, &purged)?;
    if purged.records == 0 {
        say(NOTHING_EXPIRED);
        return Ok(Outcome::NothingMatched);
    }
    say_operation(purged.operation);
    Ok(Outcome::Well)
}

fn say_preview(format: Format, preview: &InboxPurgePreview) -> Result<Outcome, CommandError> {
    output::one(format, preview)?;
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

const NOTHING_EXPIRED: &str = "nothing has expired in the inbox";

impl Print for InboxPurgePreview {
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
    fn name(&self) -> String {
        self.change.to_owned()
    }

    fn text(&self) -> Option<String> {
        let records = text::counted(self.records, "record is deleted", "records are deleted");
        Some(format!("{records}\n"))
    }
}

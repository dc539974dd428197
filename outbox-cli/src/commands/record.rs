//! Changes that no transaction can hold together with their operation, such as those of tables.
//!
//! Invariant: the operation is written down before the change and ended after it, so nothing is done that the audit does not show; a crash, or an error, leaves an
//! operation without an end. Only where the change itself makes the table of operations it is written down behind it.

use outbox::core::{Operation, OutboxAudit as _};
use outbox::inbox::InboxOperations;

use super::place::Place;
use crate::failure::CommandError;
use crate::output::say;

/// The table in which an operation is written down.
pub(super) enum Record {
    /// That of the outbox.
    Outbox,
    /// That of the inbox.
    Inbox(InboxOperations),
}

impl Record {
    pub(super) async fn begin(&self, place: &Place, operation: &Operation) -> Result<(), CommandError> {
        match self {
            Self::Outbox => place.ask(place.store.write_down(operation)).await,
            Self::Inbox(operations) => place.ask(operations.write_down(operation)).await,
        }
    }

    pub(super) async fn end(
        &self,
        place: &Place,
        operation: &Operation,
        changed: u64,
    ) -> Result<(), CommandError> {
        let id = operation.id;
        match self {
            Self::Outbox => place.ask(place.store.finish(id, changed)).await,
            Self::Inbox(operations) => place.ask(operations.finish(id, changed)).await,
        }
    }

    /// Says what an operation without an end means.
    pub(super) fn broke_off(operation: &Operation) {
        let id = operation.id;
        say(&format!(
            "operation {id} is written down and has not ended: what was done of it is not known; the same command again goes on, as another operation"
        ));
    }
}

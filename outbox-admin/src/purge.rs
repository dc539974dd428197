//! Purges of inboxes: what one would delete, why it is refused, and the purge itself.
//!
//! Invariants: a preview reads and changes nothing. Nothing is deleted whose memory a consumer may still need. Not here: purges of the outbox, which are a
//! [`Change`](crate::Change) like others.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use outbox_core::{Intent, Operation, OperationId, OperationKind, OperationScope};
use outbox_inbox::ExpiredRecords;
use sea_orm::DbErr;
use serde::Serialize;

use crate::doctor::{Check, ConsumerFacts, StreamFacts, of_consumer};
use crate::serial;

/// Records per transaction.
const BATCH: u32 = 1_000;

/// What a purge of an inbox would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct InboxPurgePreview {
    /// `purge-inbox`.
    pub change: &'static str,
    /// Records that it would delete.
    pub records: u64,
    /// Whether that is all. Counting stops at 100,000.
    pub is_complete: bool,
    /// The records by consumer.
    pub consumers: BTreeMap<String, u64>,
    /// Records of dead messages that have expired. Those without a dead letter are deleted too; the others stay as long as their dead letters.
    pub dead: u64,
    /// What it would do: one sentence each.
    pub effects: Vec<String>,
    /// Why it is refused. Empty: it is not.
    pub refusals: Vec<String>,
}

/// What a purge of an inbox has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct InboxPurged {
    /// `purge-inbox`.
    pub change: &'static str,
    /// Records that the operation has deleted in this call.
    pub records: u64,
    /// The operation; `None` if nothing was deleted, so nothing was written down.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// A new operation that purges an inbox: the first ones of its expired records, or all.
#[must_use]
pub fn inbox_purge_operation(first: Option<NonZeroU64>, intent: Intent) -> Operation {
    let scope = OperationScope::default().first(first);
    Operation::new(OperationKind::PurgeInbox, scope, intent)
}

/// Says what a purge would delete. `refusals` are those of [`inbox_refusals`].
///
/// # Errors
///
/// The database's error, also if it has no inbox.
pub async fn preview_inbox_purge(
    records: &ExpiredRecords,
    first: Option<NonZeroU64>,
    refusals: Vec<String>,
) -> Result<InboxPurgePreview, DbErr> {
    let count = records.count().await?;
    let all = count.consumers.values().sum::<u64>();
    let first = first.map_or(u64::MAX, NonZeroU64::get);
    let mut effects = Vec::new();
    if all > 0 {
        effects.push(
            "a copy of such a message that is delivered later takes effect once more: their time is over. A stream that keeps messages for ever delivers them to a consumer that is set back or made anew"
                .to_owned(),
        );
    }
    if count.dead > 0 {
        effects.push("records of dead messages stay as long as their dead letters, about which `outbox dead-letters` decides".to_owned());
    }
    Ok(InboxPurgePreview {
        change: "purge-inbox",
        records: all.min(first),
        is_complete: count.is_complete || all >= first,
        consumers: count.consumers,
        dead: count.dead,
        effects,
        refusals,
    })
}

/// Why an inbox must not forget: the stream keeps messages for longer than a consumer remembers them, so that what is forgotten could be delivered again. A running inbox
/// asks the same before each purge. Of a stream that keeps messages for ever it only warns, and nothing is refused here.
#[must_use]
pub fn inbox_refusals(stream: &StreamFacts, consumers: &[ConsumerFacts]) -> Vec<String> {
    if stream.max_age.is_none() {
        // Nothing is delivered again by itself; an inbox only warns of it.
        return Vec::new();
    }
    let mut refusals = Vec::new();
    for consumer in consumers {
        let found = of_consumer(consumer, stream);
        let forgetful = found
            .into_iter()
            .filter(|diagnosis| diagnosis.check == Check::InboxMemory);
        refusals.extend(forgetful.map(|diagnosis| {
            let advice = diagnosis.next.advice.unwrap_or_default();
            format!("consumer {}: {}; {advice}", consumer.name, diagnosis.seen)
        }));
    }
    refusals
}

/// Deletes expired records, in transactions of at most 1,000, each together with the operation that says who, why and how many. `begun` is what the operation has deleted
/// before.
///
/// # Errors
///
/// The database's error. What was deleted before stays deleted and is counted; call it again with the same operation.
///
/// # Cancellation
///
/// As an error.
pub async fn apply_inbox_purge(
    records: &ExpiredRecords,
    operation: &Operation,
    begun: u64,
) -> Result<InboxPurged, DbErr> {
    let first = operation.scope.first.map_or(u64::MAX, NonZeroU64::get);
    let mut deleted = 0;
    loop {
        let left = first.saturating_sub(begun).saturating_sub(deleted);
        let at_most = u32::try_from(left).unwrap_or(u32::MAX).min(BATCH);
        if at_most == 0 {
            break;
        }
        let (some, more) = records.delete_some(at_most, operation).await?;
        // A crash here leaves what was deleted counted, and the operation without an end.
        deleted += some;
        if !more {
            break;
        }
    }
    records.end(operation).await?;
    Ok(InboxPurged {
        change: "purge-inbox",
        records: deleted,
        operation: (begun + deleted > 0).then_some(operation.id),
    })
}

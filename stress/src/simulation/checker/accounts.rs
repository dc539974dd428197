//! The checker's record of each message and of each run of a relay.
//!
//! Invariant: it holds only facts that are visible from outside the relay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_core::message::MessageId;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::maintenance::{Drain, Reconciling};
use crate::simulation::history::MessageNo;

/// Why the broker or the store refuses a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Poison {
    None,
    /// The broker never accepts the message.
    Permanent,
    /// The broker refuses the message this many times, without a reason.
    Unclassified(u32),
    /// The store cannot read the message.
    Unreadable,
    /// The store refuses every verdict on the message.
    Unrecordable,
}

/// A message as a writer recorded it.
#[derive(Debug, Clone)]
pub(in super::super) struct Draft {
    pub(in super::super) id: MessageId,
    pub(in super::super) aggregate: u32,
    pub(in super::super) partition: u16,
    pub(in super::super) sequenced: bool,
    pub(in super::super) available_at: Option<OffsetDateTime>,
    pub(in super::super) poison: Poison,
    /// The original, if this message is a copy.
    pub(in super::super) copy_of: Option<MessageNo>,
    /// Number of committed messages at the time of recording.
    pub(in super::super) known: MessageNo,
    pub(in super::super) payload: Arc<[u8]>,
    /// The number of what the writer meant to record, if it tries until it knows that this is recorded. A copy has none.
    pub(in super::super) meant: Option<u32>,
}

/// A committed message and its history.
#[derive(Debug)]
pub(in super::super) struct Account {
    pub(in super::super) draft: Draft,
    /// The message's number in its aggregate; a copy has none of its own.
    pub(super) sequence: Option<u64>,
    /// Whether the message's order is not promised, because it was skipped, or dead-lettered while others went on.
    pub(super) free: bool,
    /// Whether the message has been on the stream.
    pub(in super::super) appeared: bool,
    /// Number of the message's copies on the stream.
    pub(in super::super) copies: u32,
    /// The stream sequence from which the broker knows the message's id; `None` if the broker does not know the id.
    pub(super) remembered: Option<u64>,
    pub(super) sends: u32,
    /// Number of reasons to send the message once more.
    pub(super) excuses: u32,
    /// Refusals since the last retry that were the message's own fault: permanent ones, and unclassified ones.
    pub(super) faults: (u32, u32),
    /// Attempts counted since the last retry.
    pub(super) attempts: u32,
    /// Attempts that may be counted twice because an answer was lost.
    pub(super) may_repeat: u32,
    /// Whether the message became a dead letter without the relay's knowledge.
    pub(super) may_die_again: bool,
    /// Time at which the message was settled as published.
    pub(in super::super) settled_at: Option<Instant>,
    pub(in super::super) purged: bool,
    pub(super) committed_at: Instant,
    /// Whether the broker has confirmed the message to a relay.
    pub(super) was_confirmed: bool,
    /// Time at which the stored position of the log passed the message while it was the log's.
    pub(in super::super) passed_at: Option<Instant>,
    /// Whether the table has adopted the message.
    pub(in super::super) was_adopted: bool,
    /// Whether the store has refused verdicts on the message at some time.
    pub(super) was_unrecordable: bool,
}

impl Account {
    /// Whether the outbox says of the message that it is on the stream.
    pub(super) fn is_settled(&self) -> bool {
        self.settled_at.is_some() || self.passed_at.is_some()
    }

    pub(super) fn new(draft: Draft, sequence: Option<u64>, free: bool) -> Self {
        Self {
            was_unrecordable: draft.poison == Poison::Unrecordable,
            draft,
            sequence,
            free,
            appeared: false,
            copies: 0,
            remembered: None,
            sends: 0,
            excuses: 0,
            faults: (0, 0),
            attempts: 0,
            may_repeat: 0,
            may_die_again: false,
            settled_at: None,
            purged: false,
            committed_at: Instant::now(),
            was_confirmed: false,
            passed_at: None,
            was_adopted: false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct LifeAccount {
    pub(super) resumed_at: Option<Instant>,
    /// Messages that were confirmed to this run and are not settled.
    pub(super) confirmed: BTreeSet<MessageNo>,
    /// Whether a settlement has failed or got no answer since the last answered one.
    pub(super) settles_in_vain: bool,
    /// Messages that the log has given to this run, and the table has not.
    pub(super) given: BTreeSet<MessageNo>,
    /// Messages that the log has given to this run at any time.
    pub(super) ever_given: BTreeSet<MessageNo>,
    /// Aggregates with a message in flight, and that message.
    pub(super) in_flight: BTreeMap<u32, MessageNo>,
    /// Set for a drain, which ends by itself.
    pub(super) drains: Option<Drain>,
    /// Set for a reconciling task, which is not a relay.
    pub(super) reconciles: Option<Reconciling>,
}

//! The judge's record of each message and of each run of a relay.
//!
//! Invariant: it holds only facts that were seen from outside.

use std::collections::BTreeSet;

use outbox_core::message::MessageId;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::maintenance::{Drain, Reconciling};
use crate::simulation::history::MessageNo;

/// Why the broker or the store refuses a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Poison {
    None,
    /// The broker never takes it.
    Permanent,
    /// The broker refuses it this many times, without a reason.
    Unclassified(u32),
    /// The store cannot read it.
    Unreadable,
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
    /// The message that it is a copy of.
    pub(in super::super) copy_of: Option<MessageNo>,
    /// The number of messages that were committed when it was recorded.
    pub(in super::super) known: MessageNo,
}

/// A committed message and its history.
#[derive(Debug)]
pub(in super::super) struct Account {
    pub(in super::super) draft: Draft,
    /// Its number in its aggregate; a copy has none of its own.
    pub(super) sequence: Option<u64>,
    /// Its order is not promised: it was skipped, or dead-lettered while others went on.
    pub(super) free: bool,
    /// It has been on the stream.
    pub(in super::super) appeared: bool,
    /// The number of its copies on the stream.
    pub(in super::super) copies: u32,
    /// The broker knows its id, from this stream sequence.
    pub(super) remembered: Option<u64>,
    pub(super) sends: u32,
    /// The number of reasons to send it once more.
    pub(super) excuses: u32,
    /// Refusals that were its own fault, since it was last retried: for good, and for no known reason.
    pub(super) faults: (u32, u32),
    /// Attempts that were counted since then.
    pub(super) attempts: u32,
    /// Attempts that a lost answer may make count twice.
    pub(super) may_repeat: u32,
    /// The relay does not know that it became a dead letter.
    pub(super) may_die_again: bool,
    /// When it was settled as published.
    pub(in super::super) settled_at: Option<Instant>,
    pub(in super::super) purged: bool,
}

impl Account {
    pub(super) fn new(draft: Draft, sequence: Option<u64>, free: bool) -> Self {
        Self {
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
        }
    }

    /// Its order is not promised.
    pub(in super::super) fn is_free(&self) -> bool {
        self.free
    }
}

#[derive(Debug, Default)]
pub(super) struct LifeAccount {
    pub(super) resumed_at: Option<Instant>,
    /// Messages that were confirmed to it and are not settled.
    pub(super) confirmed: BTreeSet<MessageNo>,
    /// Since its last answered settlement, another one failed or got no answer.
    pub(super) settles_in_vain: bool,
    /// Aggregates of which a message is on its way.
    pub(super) in_flight: BTreeSet<u32>,
    /// Set for a drain, which ends by itself.
    pub(super) drains: Option<Drain>,
    /// Set for a reconciling task, which is no relay.
    pub(super) reconciles: Option<Reconciling>,
}

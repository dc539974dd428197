//! The checker's record of each message and each run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_core::message::MessageId;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::maintenance::{Drain, Reconciling};
use crate::simulation::history::MessageNo;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Poison {
    None,
    Permanent,
    Unclassified(u32),
    Unreadable,
    /// The store rejects every settlement of the message.
    Unrecordable,
}

#[derive(Debug, Clone)]
pub(in super::super) struct Draft {
    pub(in super::super) id: MessageId,
    pub(in super::super) aggregate: u32,
    pub(in super::super) partition: u16,
    pub(in super::super) sequenced: bool,
    pub(in super::super) available_at: Option<OffsetDateTime>,
    pub(in super::super) poison: Poison,
    pub(in super::super) copy_of: Option<MessageNo>,
    pub(in super::super) known: MessageNo,
    pub(in super::super) payload: Arc<[u8]>,
    /// Number of the event that the writer records with retries; `None` for copies and writers
    /// without retries.
    pub(in super::super) meant: Option<u32>,
}

#[derive(Debug)]
pub(in super::super) struct Account {
    pub(in super::super) draft: Draft,
    pub(super) sequence: Option<u64>,
    /// Whether the message may be out of order, after a skip or a dead letter without halt.
    pub(super) free: bool,
    pub(in super::super) appeared: bool,
    pub(in super::super) copies: u32,
    /// The stream sequence under which the broker keeps the message id.
    pub(super) remembered: Option<u64>,
    pub(super) sends: u32,
    pub(super) excuses: u32,
    pub(super) faults: (u32, u32),
    pub(super) attempts: u32,
    /// Number of attempts that may count twice, because an answer was lost.
    pub(super) may_repeat: u32,
    /// Whether a `Dead` verdict may be repeated, because an answer was lost.
    pub(super) may_die_again: bool,
    pub(in super::super) settled_at: Option<Instant>,
    pub(in super::super) purged: bool,
    pub(super) committed_at: Instant,
    pub(super) was_confirmed: bool,
    pub(in super::super) passed_at: Option<Instant>,
    pub(in super::super) was_adopted: bool,
    pub(super) was_unrecordable: bool,
}

impl Account {
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
    pub(super) confirmed: BTreeSet<MessageNo>,
    pub(super) settles_in_vain: bool,
    pub(super) given: BTreeSet<MessageNo>,
    pub(super) ever_given: BTreeSet<MessageNo>,
    pub(super) in_flight: BTreeMap<u32, MessageNo>,
    pub(super) drains: Option<Drain>,
    pub(super) reconciles: Option<Reconciling>,
}

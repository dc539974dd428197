//! The checker's rules for tasks that end: drains, reconciling and purges.
//!
//! Invariant: the checker's own books decide which messages are due, lost or old enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_core::message::MessageId;
use tokio::time::Instant;

use super::Checker;
use crate::simulation::Invariant;
use crate::simulation::history::{Life, MessageNo};

/// One reconciling task with more messages reads several pages, and only each page is in order.
const PAGE: usize = 1000;

/// The messages that a drain has to publish.
#[derive(Debug)]
pub(super) struct Drain {
    due: Vec<MessageNo>,
    began: Instant,
}

/// What one reconciling task has read and sent.
#[derive(Debug, Default)]
pub(super) struct Reconciling {
    /// Messages that are on the stream according to the answer that the task received.
    listed: BTreeSet<MessageNo>,
    /// The last number that the task sent of each aggregate.
    sent: BTreeMap<u32, u64>,
}

impl Checker {
    // Drains.

    /// Notes that a drain begins. The messages `due` may be published now, and no other run owns their partitions.
    pub(in super::super) fn drains(&mut self, life: Life, due: Vec<MessageNo>) {
        for no in &due {
            // Earlier owners do not count.
            self.acquired_by[usize::from(self.messages[*no as usize].draft.partition)] = None;
        }
        self.lives[life as usize].drains = Some(Drain {
            due,
            began: Instant::now(),
        });
    }

    /// Removes a partition from all drains but the owner's: messages of a partition that another run takes over may be
    /// blocked when the partition comes back.
    pub(super) fn leave_to(&mut self, owner: Life, partition: u16) {
        for (life, account) in (0..).zip(&mut self.lives) {
            if let Some(Drain { due, .. }) = account.drains.as_mut().filter(|_| life != owner) {
                due.retain(|no| self.messages[*no as usize].draft.partition != partition);
            }
        }
    }

    /// Notes that a drain reports that it published everything.
    pub(in super::super) fn drained(&mut self, life: Life) {
        let Some(Drain { due, began }) = self.lives[life as usize].drains.take() else {
            return;
        };
        // It leaves what is paused.
        if self.was_paused_since(began) {
            return;
        }
        let left = due.into_iter().find(|no| {
            let account = self.account(*no);
            let owner = self.acquired_by[usize::from(account.draft.partition)];
            owner == Some(life) && account.settled_at.is_none()
        });
        self.demand(Invariant::Progress, left.is_none(), || {
            format!("relay run {life} drained its partitions and left message {left:?}, which was due")
        });
    }

    // Reconciling.

    pub(in super::super) fn reconciles(&mut self, life: Life) {
        self.lives[life as usize].reconciles = Some(Reconciling::default());
    }

    /// Notes that the task asks for the contents of the stream. Returns the ids.
    pub(in super::super) fn listed(&mut self, life: Life) -> Vec<MessageId> {
        let listed: BTreeSet<MessageNo> = self.stream.values().copied().collect();
        let ids = listed.iter().map(|no| self.account(*no).draft.id).collect();
        if let Some(reconciling) = &mut self.lives[life as usize].reconciles {
            reconciling.listed = listed;
        }
        ids
    }

    /// Notes that the task sends a message that it believes lost.
    pub(super) fn sent_again(&mut self, life: Life, no: MessageNo) {
        let account = &self.messages[no as usize];
        let (settled, aggregate) = (account.is_settled(), account.draft.aggregate);
        let sequence = account.sequence.filter(|_| self.messages.len() <= PAGE);
        let Some(reconciling) = &mut self.lives[life as usize].reconciles else {
            return;
        };
        let was_there = reconciling.listed.contains(&no);
        let last = sequence.and_then(|sequence| reconciling.sent.insert(aggregate, sequence));
        self.demand(Invariant::Duplicates, settled && !was_there, || {
            format!("reconciling sent message {no}; settled as published: {settled}, on the stream before: {was_there}")
        });
        self.demand(
            Invariant::Order,
            last.is_none_or(|last| Some(last) < sequence),
            || format!("reconciling sent message {no} of aggregate {aggregate} behind a later one"),
        );
    }

    /// Number of messages that were settled as published or passed by the log, can be read from the outbox, and are not on the stream.
    pub(in super::super) fn missing(&self) -> u64 {
        let is_missing =
            |account: &&super::Account| account.is_settled() && account.copies == 0 && !account.purged;
        self.messages.iter().filter(is_missing).count() as u64
    }

    // Purges.

    /// Notes that these rows were purged for being older than `older_than`.
    pub(in super::super) fn purged(&mut self, gone: &[MessageId], older_than: Duration) {
        for no in gone.iter().filter_map(|id| self.no_of(*id)).collect::<Vec<_>>() {
            self.history.note(format!("message {no} is purged"));
            let account = self.account_mut(no);
            account.purged = true;
            let (settled_at, passed_at) = (account.settled_at, account.passed_at);
            let recorded = account.draft.copy_of.unwrap_or(no);
            // The retention of a message of the log counts from its recording, and that of a copy from the recording of its original.
            let of_log = passed_at.map(|_| self.account(recorded).committed_at);
            let is_old = settled_at
                .or(of_log)
                .and_then(|at| at.checked_add(older_than))
                .is_some_and(|end| Instant::now() > end);
            self.demand(Invariant::NoLoss, is_old, || {
                format!("message {no} was purged, settled as published at {settled_at:?}")
            });
        }
    }
}

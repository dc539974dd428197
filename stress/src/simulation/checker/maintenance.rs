//! The checker's rules for drains, reconciliation and purges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_core::message::MessageId;
use tokio::time::Instant;

use super::Checker;
use crate::simulation::Invariant;
use crate::simulation::history::{Life, MessageNo};

/// Messages per page of a reconciliation. Only messages within a page are ordered.
const PAGE: usize = 1000;

#[derive(Debug)]
pub(super) struct Drain {
    due: Vec<MessageNo>,
    began: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Reconciling {
    listed: BTreeSet<MessageNo>,
    sent: BTreeMap<u32, u64>,
}

impl Checker {
    /// Registers a drain. `due`: publishable messages in partitions without an owner.
    pub(in super::super) fn drains(&mut self, life: Life, due: Vec<MessageNo>) {
        for no in &due {
            self.acquired_by[usize::from(self.messages[*no as usize].draft.partition)] = None;
        }
        self.lives[life as usize].drains = Some(Drain {
            due,
            began: Instant::now(),
        });
    }

    /// Removes messages of a partition from the messages that a drain must publish. Another process
    /// took over the partition and may block them.
    pub(super) fn leave_to(&mut self, owner: Life, partition: u16) {
        for (life, account) in (0..).zip(&mut self.lives) {
            if let Some(Drain { due, .. }) = account.drains.as_mut().filter(|_| life != owner) {
                due.retain(|no| self.messages[*no as usize].draft.partition != partition);
            }
        }
    }

    pub(in super::super) fn drained(&mut self, life: Life) {
        let Some(Drain { due, began }) = self.lives[life as usize].drains.take() else {
            return;
        };
        // A drain leaves paused messages unpublished.
        if self.was_paused_since(began) {
            return;
        }
        let left = due.into_iter().find(|no| {
            let account = self.account(*no);
            let owner = self.acquired_by[usize::from(account.draft.partition)];
            // After row ids were set back, a copy may wait behind a delayed later message.
            let is_placed = account.draft.copy_of.is_none() || !self.copies_are_anywhere;
            owner == Some(life) && account.settled_at.is_none() && is_placed
        });
        self.demand(Invariant::Progress, left.is_none(), || {
            format!("relay run {life} drained its partitions and left message {left:?}, which was due")
        });
    }

    pub(in super::super) fn reconciles(&mut self, life: Life) {
        self.lives[life as usize].reconciles = Some(Reconciling::default());
    }

    pub(in super::super) fn listed(&mut self, life: Life) -> Vec<MessageId> {
        let listed: BTreeSet<MessageNo> = self.stream.values().copied().collect();
        let ids = listed.iter().map(|no| self.account(*no).draft.id).collect();
        if let Some(reconciling) = &mut self.lives[life as usize].reconciles {
            reconciling.listed = listed;
        }
        ids
    }

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

    pub(in super::super) fn missing(&self) -> u64 {
        let is_missing =
            |account: &&super::Account| account.is_settled() && account.copies == 0 && !account.purged;
        self.messages.iter().filter(is_missing).count() as u64
    }

    pub(in super::super) fn purged(&mut self, gone: &[MessageId], older_than: Duration) {
        for no in gone.iter().filter_map(|id| self.no_of(*id)).collect::<Vec<_>>() {
            self.history.note(format!("message {no} is purged"));
            let account = self.account_mut(no);
            account.purged = true;
            let (settled_at, passed_at) = (account.settled_at, account.passed_at);
            let recorded = account.draft.copy_of.unwrap_or(no);
            // For copies and messages published from the log, the retention starts when the
            // original is recorded.
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

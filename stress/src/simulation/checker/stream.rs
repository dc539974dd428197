//! The checker's books on the stream, derived from the broker's actions.

use std::collections::HashSet;

use outbox_core::publisher::{FailureClass, Receipt};
use outbox_core::relay::PoisonPolicy;
use time::OffsetDateTime;

use super::{Checker, Poison};
use crate::simulation::Invariant;
use crate::simulation::history::MessageNo;

impl Checker {
    pub(in super::super) fn own_fault(&mut self, no: MessageNo) -> Option<FailureClass> {
        let goes_on = self.on_poison == PoisonPolicy::Continue;
        let original = self.account(no).draft.copy_of.unwrap_or(no);
        let class = match &mut self.account_mut(original).draft.poison {
            Poison::Permanent => FailureClass::Permanent,
            Poison::Unclassified(left @ 1..) => {
                *left -= 1;
                FailureClass::Unclassified
            }
            _ => return None,
        };
        let attempts_max = self.attempts_max;
        let account = self.account_mut(no);
        match class {
            FailureClass::Permanent => account.faults.0 += 1,
            _ => account.faults.1 += 1,
        }
        let is_last = class == FailureClass::Permanent || account.attempts + 1 >= attempts_max;
        account.free |= goes_on && is_last;
        Some(class)
    }

    pub(in super::super) fn stored(&mut self, no: MessageNo, receipt: Receipt, now: OffsetDateTime) {
        let Receipt {
            stream_sequence,
            duplicate,
        } = receipt;
        self.history
            .note(format!("message {no} is stored, duplicate: {duplicate}"));
        if duplicate {
            return;
        }
        self.stream.insert(stream_sequence, no);
        let account = self.account_mut(no);
        account.copies += 1;
        let known = account.remembered.replace(stream_sequence);
        let first = !std::mem::replace(&mut account.appeared, true);
        let early = account.draft.available_at.is_some_and(|at| now < at);
        self.demand(Invariant::Duplicates, known.is_none(), || {
            format!("message {no} is on the stream once more, although the broker still has its id")
        });
        self.demand(Invariant::Order, !early, || {
            format!("message {no} was published before its time")
        });
        if first {
            self.check_order(no);
        }
    }

    /// Whether an earlier message of an aggregate must precede a later one. A copy follows all
    /// earlier recordings, but no later commit.
    pub(super) fn are_ordered(&self, earlier: MessageNo, later: MessageNo) -> bool {
        let (copied, draft) = (self.account(earlier).draft.copy_of, &self.account(later).draft);
        let is_behind = draft.copy_of.is_some() || copied.is_none() || earlier < draft.known;
        let is_copy = draft.copy_of.or(copied).is_some();
        is_behind && !(is_copy && self.copies_are_anywhere)
    }

    fn check_order(&mut self, no: MessageNo) {
        let account = self.account(no);
        if account.free || !account.draft.sequenced {
            return;
        }
        let missing = self.order.get(&account.draft.aggregate).and_then(|order| {
            let earlier = order.iter().take_while(|other| **other != no);
            earlier.copied().find(|no_of_other| {
                let other = self.account(*no_of_other);
                self.are_ordered(*no_of_other, no) && !other.appeared && !other.free
            })
        });
        if let Some(missing) = missing {
            let aggregate = account.draft.aggregate;
            self.violate(
                Invariant::Order,
                format!("message {no} of aggregate {aggregate} appeared before message {missing}"),
            );
        }
    }

    pub(in super::super) fn forgot(&mut self) {
        for account in &mut self.messages {
            account.remembered = None;
        }
    }

    pub(in super::super) fn stream_sequences(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.stream.keys().copied()
    }

    pub(in super::super) fn lost(&mut self, stream_sequences: &HashSet<u64>, forgets_ids: bool) {
        // The order of a set is random, but the history must be the same for each run of a seed.
        let mut stream_sequences: Vec<u64> = stream_sequences.iter().copied().collect();
        stream_sequences.sort_unstable();
        for stream_sequence in stream_sequences {
            if let Some(no) = self.stream.remove(&stream_sequence) {
                self.history.note(format!("the stream loses message {no}"));
                let account = self.account_mut(no);
                account.copies -= 1;
                account.remembered = account
                    .remembered
                    .filter(|known| *known != stream_sequence || !forgets_ids);
            }
        }
    }
}

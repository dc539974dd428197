//! The checker's rules for the log.
//!
//! Invariant: the checker derives from the commits which messages precede a position.

use std::collections::BTreeSet;

use outbox_core::log::Position;
use outbox_core::message::MessageId;
use tokio::time::Instant;

use super::Checker;
use crate::simulation::Invariant;
use crate::simulation::history::{Life, MessageNo};

impl Checker {
    pub(in super::super) fn has_log(&mut self) {
        self.has_log = true;
    }

    pub(in super::super) fn logged(&mut self, end: Position, messages: Vec<MessageNo>) {
        self.unpassed.push((end, messages));
    }

    /// A new reader may send the messages after the stored position once more.
    pub(in super::super) fn opened_log(&mut self, life: Life) {
        self.history.note(format!("run {life} opens the log"));
        for no in self.unpassed.iter().flat_map(|(_, messages)| messages) {
            self.messages[*no as usize].excuses += 1;
        }
    }

    pub(in super::super) fn given(&mut self, life: Life, id: MessageId) {
        match self.no_of(id) {
            Some(no) => {
                let run = &mut self.lives[life as usize];
                run.given.insert(no);
                run.ever_given.insert(no);
            }
            None => self.violate(
                Invariant::NoGhost,
                format!("the log gave relay run {life} a message that was never committed"),
            ),
        }
    }

    pub(super) fn given_by_table(&mut self, life: Life, due: &[i64]) {
        for row_id in due {
            if let Some(no) = self.by_row_id.get(row_id) {
                self.lives[life as usize].given.remove(no);
            }
        }
    }

    pub(super) fn is_of_log(&self, life: Life, no: MessageNo) -> bool {
        self.lives[life as usize].given.contains(&no)
    }

    /// Checks messages that the log relay made pending. These messages may be in flight.
    pub(in super::super) fn adopted(&mut self, life: Life, ids: &[MessageId]) {
        let adopted: BTreeSet<MessageNo> = ids.iter().filter_map(|id| self.no_of(*id)).collect();
        for no in adopted {
            self.history
                .note(format!("run {life}: the table adopts message {no}"));
            let account = self.account_mut(no);
            account.excuses += 1;
            account.was_adopted = true;
        }
    }

    pub(in super::super) fn passed_by(&mut self, stored: Position) -> Vec<MessageNo> {
        let passed = self.unpassed.extract_if(.., |(end, _)| *end <= stored);
        passed.flat_map(|(_, messages)| messages).collect()
    }

    /// Checks messages before the stored position. A message whose status is still `logged` must
    /// have been on the stream.
    pub(in super::super) fn passed(&mut self, passed: &[MessageNo], logged: &BTreeSet<MessageId>) {
        for no in passed.iter().copied() {
            self.history.note(format!("the position passes message {no}"));
            let account = self.account_mut(no);
            if !logged.contains(&account.draft.id) {
                continue;
            }
            account.passed_at = Some(Instant::now());
            let appeared = account.appeared;
            self.demand(Invariant::NoLoss, appeared, || {
                format!("the position has passed message {no}, which was never on the stream and is not the table's")
            });
        }
    }

    pub(in super::super) fn has_passed_all(&self) -> bool {
        self.unpassed.is_empty()
    }
}

//! The checker's rules for the log: what its position may pass, and what may come twice.
//!
//! Invariant: the checker knows from the commits themselves which messages the log holds up to a position.

use std::collections::BTreeSet;

use outbox_core::log::Position;
use outbox_core::message::MessageId;
use tokio::time::Instant;

use super::Checker;
use crate::simulation::Invariant;
use crate::simulation::history::{Life, MessageNo};

impl Checker {
    /// The relays of this world are log relays.
    pub(in super::super) fn has_log(&mut self) {
        self.has_log = true;
    }

    /// Notes that these messages were committed, and that the log holds them up to this position.
    pub(in super::super) fn logged(&mut self, end: Position, messages: Vec<MessageNo>) {
        self.unpassed.push((end, messages));
    }

    /// Notes that a reading begins. Everything that the position has not passed may come once more.
    pub(in super::super) fn opened_log(&mut self, life: Life) {
        self.history.note(format!("run {life} opens the log"));
        for no in self.unpassed.iter().flat_map(|(_, messages)| messages) {
            self.messages[*no as usize].excuses += 1;
        }
    }

    /// Notes that the log gives a message to a run.
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

    /// Notes that the table gives a message to a run, which is not the log's any more.
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

    /// Notes that the table has adopted messages. They may be on their way to the broker from the log.
    pub(in super::super) fn adopted(&mut self, life: Life, ids: &[MessageId]) {
        // Sorted by their numbers, because ids are random.
        let adopted: BTreeSet<MessageNo> = ids.iter().filter_map(|id| self.no_of(*id)).collect();
        for no in adopted {
            self.history
                .note(format!("run {life}: the table adopts message {no}"));
            let account = self.account_mut(no);
            account.excuses += 1;
            account.was_adopted = true;
        }
    }

    /// The messages that the stored position has passed since it was last asked.
    pub(in super::super) fn passed_by(&mut self, stored: Position) -> Vec<MessageNo> {
        let passed = self.unpassed.extract_if(.., |(end, _)| *end <= stored);
        passed.flat_map(|(_, messages)| messages).collect()
    }

    /// Checks that the position passes nothing that is not decided: a message that is still logged must have been on the stream.
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

    /// Whether the position has passed everything that was committed.
    pub(in super::super) fn has_passed_all(&self) -> bool {
        self.unpassed.is_empty()
    }
}

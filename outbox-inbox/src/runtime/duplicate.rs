//! Messages that took effect before: how that is found out, what ends then, and what their handler asks for.
//!
//! Invariants: the strategy is asked before an attempt is counted, so that what is done, what waits for its turn and what runs elsewhere uses none; what
//! is kept of a message that is not handled yet (the row of its attempts, its dead letter) ends before the message is acknowledged. Absent here: claims
//! ([`crate::dedup::claim`]).

use std::sync::Arc;

use outbox_core::{DedupKey, Message, StoreClaim};
use sea_orm::DbErr;

use super::call::STORE_LEASE_MARGIN;
use super::consumer::Consumer;
use super::routed::{Handling, RoutedMessage};
use super::run::RunOutcome;
use crate::database::roll_back;
use crate::dead_letter::retry::{self, Taken};
use crate::dedup::claim::Claimant;
use crate::handler::{OnDuplicate, Registration, Strategy, describe};
use crate::hook::Handled;

impl Consumer {
    /// Asks the strategy whether the message may run now, and leaves no trace. `None`: it may, or the strategy cannot tell.
    pub(super) async fn ask(
        &self,
        routed: &RoutedMessage,
        handler: &Registration,
        claimant: &Claimant<'_>,
    ) -> Option<RunOutcome> {
        if matches!(claimant.strategy, Strategy::External) {
            return self.ask_store(handler, claimant).await;
        }
        if !claimant.can_tell() {
            return None;
        }
        let tx = match self.shared.database.begin().await {
            Ok(tx) => tx,
            Err(error) => return Some(RunOutcome::NotStarted(describe(&error))),
        };
        let claim = self.claim(&tx, routed, handler, claimant).await;
        roll_back(tx).await;
        claim.filter(|claim| !matches!(claim, RunOutcome::CountFirst))
    }

    async fn ask_store(&self, handler: &Registration, claimant: &Claimant<'_>) -> Option<RunOutcome> {
        let store = self.shared.store.as_ref()?;
        let key = DedupKey::new(self.name, claimant.message.event_id);
        let lease = self.timeout(Some(handler)) + STORE_LEASE_MARGIN;
        let answer = match store.claim(&key, lease).await {
            // Counting may take longer than the lease has to spare, so the run claims anew. A crash before the release, or one that is lost: the next
            // claim waits for the end of the lease.
            Ok(StoreClaim::Mine(token)) => store.release(&key, token).await.map(|()| None),
            Ok(StoreClaim::Done) => Ok(Some(RunOutcome::Duplicate)),
            Ok(StoreClaim::InProgress) => Ok(Some(RunOutcome::Busy(lease / 4))),
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| Some(RunOutcome::NotStarted(describe(&error))))
    }

    /// A message that took effect before is acknowledged, and does what its handler asks for.
    pub(super) async fn duplicate(
        &self,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        handler: &Registration,
        claimant: Option<&Claimant<'_>>,
    ) -> Handling {
        if let Err(handling) = self.end(routed, message).await {
            return handling;
        }
        let wanted = handler.options.on_duplicate;
        if wanted == OnDuplicate::Skip {
            return Handling::Duplicate;
        }
        let Some(claimant) = claimant else {
            return Handling::Duplicate;
        };
        let row = match claimant.row(self.shared.database.pool()).await {
            Ok(row) => row,
            Err(error) => return self.later(routed, &describe(&error)),
        };
        let Some(row) = row else {
            return Handling::Duplicate;
        };
        match wanted {
            OnDuplicate::Result => {
                if let Some(result) = &row.result {
                    self.shared.hooks.handled(Handled {
                        consumer: self.name,
                        message,
                        duplicate: true,
                        result: Some(result),
                    });
                }
            }
            _ => {
                let ids = row.follow_ups.unwrap_or_default();
                // A crash in the middle: some are published once more than others. They are the same events, which consumers know.
                if let Err(error) = self.reemit(&ids).await {
                    return self.later(routed, &error);
                }
            }
        }
        Handling::Duplicate
    }

    /// Ends what is kept of a message that took effect: its dead letter, or the row of its attempts.
    pub(super) async fn end(&self, routed: &mut RoutedMessage, message: &Message) -> Result<(), Handling> {
        let ended = match routed.letter.clone() {
            Some(letter) => self.end_letter(&letter, message).await,
            // Only what may have failed before can have a row that says so.
            None if routed.memory.count_first => self.attempts(message, None).end().await,
            None => Ok(()),
        };
        // A crash before this: what is done is found out again, by the next delivery or the next retry.
        ended.map_err(|error| self.later(routed, &describe(&error)))
    }

    async fn end_letter(&self, letter: &retry::StoredDeadLetter, message: &Message) -> Result<(), DbErr> {
        let tx = self.shared.database.begin().await?;
        match retry::claim(&tx, &self.shared.sql, self.name, letter, message).await {
            Ok(Taken::Mine { .. } | Taken::Handled) => tx.commit().await,
            Ok(Taken::Gone) => {
                roll_back(tx).await;
                Ok(())
            }
            Err(error) => {
                roll_back(tx).await;
                Err(error)
            }
        }
    }
}

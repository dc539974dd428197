//! Messages that took effect before: how they are recognised, and which rows of theirs end.
//!
//! Invariants: the strategy is asked before an attempt is counted, so that a message that is done, waits for its turn or runs elsewhere uses none. The
//! row of a message's attempts and its dead letter end before the message is acknowledged. Not here: claims
//! ([`crate::dedup::claim`]).

use futures_util::FutureExt as _;
use outbox_core::store::{OutboxAdmin as _, Selection};
use outbox_core::{MessageId, wake};
use outbox_sea_orm::SqlStore;
use uuid::Uuid;

use super::attempt::Attempt;
use super::consumer::Consumer;
use super::ready::Ready;
use super::routed::Handling;
use super::run::RunOutcome;
use crate::database::roll_back;
use crate::dedup::claim::Claimant;
use crate::handler::{OnDuplicate, Strategy, describe};
use crate::hook::Handled;

impl Attempt<'_> {
    /// Asks the strategy whether the message may run now, and leaves no trace. `None`: it may, or the strategy cannot tell.
    pub(super) async fn ask(&self, ready: &Ready<'_>) -> Option<RunOutcome> {
        let consumer = self.consumer;
        if matches!(ready.claimant.strategy, Strategy::External) {
            return consumer.ask_store(ready).await;
        }
        if !ready.claimant.can_tell() {
            return None;
        }
        let _turn = consumer.shared.database.turn().await;
        let tx = match consumer.shared.database.begin().await {
            Ok(tx) => tx,
            Err(error) => return Some(RunOutcome::NotStarted(describe(&error))),
        };
        let claim = consumer.claim(&tx, self.routed, ready).await;
        roll_back(tx).await;
        claim.filter(|claim| !matches!(claim, RunOutcome::CountFirst))
    }

    /// A message that took effect before is acknowledged, and does what its handler asks for.
    pub(super) async fn duplicate(&mut self, claimant: Option<&Claimant<'_>>) -> Handling {
        if let Err(handling) = self.end().await {
            return handling;
        }
        let handler = self.routed.handler();
        let wanted = handler.map_or(OnDuplicate::Skip, |handler| handler.options.on_duplicate);
        let (Some(claimant), OnDuplicate::Result | OnDuplicate::Reemit) = (claimant, wanted) else {
            return Handling::Duplicate;
        };
        let consumer = self.consumer;
        let row = match claimant.row(consumer.shared.database.pool()).await {
            Ok(Some(row)) => row,
            Ok(None) => return Handling::Duplicate,
            Err(error) => return self.later(&describe(&error)),
        };
        if wanted == OnDuplicate::Reemit {
            let ids = row.follow_ups.unwrap_or_default();
            // A crash in the middle: some are published once more than others. They are the same events, which consumers know.
            if let Err(error) = consumer.reemit(&ids).await {
                return self.later(&error);
            }
        } else if let Some(result) = &row.result {
            consumer.shared.hooks.handled(Handled {
                consumer: consumer.name,
                message: self.message,
                duplicate: true,
                result: Some(result),
            });
        }
        Handling::Duplicate
    }

    /// Ends what is kept of a message that took effect: its dead letter, or the row of its attempts.
    pub(super) async fn end(&mut self) -> Result<(), Handling> {
        let ended = match self.routed.letter.clone() {
            Some(letter) => self.end_letter(&letter).await,
            // Only what may have failed before can have a row that says so.
            None if self.routed.memory.count_first => self.attempts().end().await,
            None => Ok(()),
        };
        // A crash before this: what is done is found out again, by the next delivery or the next retry.
        ended.map_err(|error| self.later(&describe(&error)))
    }
}

impl Consumer {
    /// Publishes again what a handler recorded the first time: 16 bytes per message.
    async fn reemit(&self, ids: &[u8]) -> Result<(), String> {
        let pool = self.shared.database.pool().clone();
        let store = SqlStore::new(pool)
            .with_names(&self.shared.outbox.names)
            .map_err(|error| error.to_string())?;
        for id in ids.chunks_exact(16) {
            let Ok(id) = Uuid::from_slice(id) else {
                continue;
            };
            let selection = Selection::id(MessageId::from(id));
            // Boxed, because its type would be too deep for the compiler to see that it can be sent.
            match store.replay(&selection).boxed().await {
                Ok(0) => tracing::warn!(
                    consumer = self.name,
                    message_id = %id,
                    "a follow-up event is not published again: it is pending still, or no longer kept in the outbox"
                ),
                Ok(_) => wake::notify(),
                Err(error) => return Err(describe(&error)),
            }
        }
        Ok(())
    }
}

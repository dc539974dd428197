//! A dead letter that is tried again: how its try begins, fails and ends.
//!
//! Invariant: the dead letter is taken for this process before its handler runs. Not here: finding those that are to be tried again ([`super::retries`]), and
//! their rows ([`crate::dead_letter::retry`]).

use outbox_core::store::storable_error;
use sea_orm::DbErr;

use super::attempt::Attempt;
use super::routed::Handling;
use crate::database::roll_back;
use crate::dead_letter::retry::{self, StoredDeadLetter, Taken};
use crate::dead_letter::without_payload;
use crate::handler::describe;
use crate::hook::DeadDelivery;

impl<M> Attempt<'_, M> {
    /// Takes the dead letter that the message comes from, if it comes from one. `Some`: the try is over.
    pub(super) async fn begin_letter(&mut self) -> Option<Handling> {
        let letter = self.routed.letter.clone()?;
        if !self.routed.memory.begun {
            let shared = &self.consumer.shared;
            match retry::begin(shared.database.pool(), &shared.sql, &letter).await {
                Ok(true) => self.routed.memory.begun = true,
                Ok(false) => return Some(Handling::Skipped),
                Err(error) => return Some(self.later(&describe(&error))),
            }
        }
        let error = without_payload(&letter.incoming)?;
        Some(self.letter_failed(&letter, &error).await)
    }

    /// A dead letter failed again: it stays, and so do those behind it in its aggregate.
    pub(super) async fn letter_failed(&mut self, letter: &StoredDeadLetter, error: &str) -> Handling {
        let (consumer, shared) = (self.consumer, &self.consumer.shared);
        let message = self.routed.message.as_ref().ok().cloned();
        let message = message.as_deref();
        let behind = message.map(|message| (consumer.name, &message.aggregate));
        let write = || retry::failed_again(shared.database.pool(), &shared.sql, letter, behind, error);
        match self.until_done(write).await {
            Ok(true) => {}
            // It was erased or discarded meanwhile: its payload is shown to nobody any more.
            Ok(false) => return Handling::Skipped,
            Err(handling) => return handling,
        }
        tracing::error!(consumer = consumer.name, letter = %letter.id, %error, "a dead letter failed again");
        let error = storable_error(error);
        let dead = DeadDelivery {
            consumer: consumer.name,
            incoming: &letter.incoming,
            message,
            error: &error,
            attempts: letter.attempts + 1,
        };
        shared.hooks.dead_letter(dead, letter.id).await;
        Handling::DeadLettered
    }
}

impl Attempt<'_> {
    /// Ends a dead letter whose message took effect.
    pub(super) async fn end_letter(&self, letter: &StoredDeadLetter) -> Result<(), DbErr> {
        let shared = &self.consumer.shared;
        let _turn = shared.database.turn().await;
        let tx = shared.database.begin().await?;
        match retry::claim(&tx, &shared.sql, self.consumer.name, letter, self.message).await {
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

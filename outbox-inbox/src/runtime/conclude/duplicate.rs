//! Messages that took effect before: how they are recognised, and which of their rows end.
//!
//! Invariants: the strategy is asked before an attempt is counted, so that a message that is done,
//! early or running elsewhere uses no attempt. The row of a message's attempts and its dead letter
//! end before the message is acknowledged. Not here: claims ([`crate::dedup::claim`]).

use futures_util::FutureExt as _;
use outbox_core::{MessageId, wake};
use outbox_sea_orm::SqlStore;
use uuid::Uuid;

use super::dead_letter;
use crate::database::roll_back;
use crate::dedup::Outcome;
use crate::dedup::claim::Claimant;
use crate::handler::{OnDuplicate, Strategy, describe};
use crate::hook::Handled;
use crate::runtime::consumer::Consumer;
use crate::runtime::run::attempt::Attempt;
use crate::runtime::run::input::Input;
use crate::runtime::run::{external, transaction};

/// Asks the strategy whether the message may run now, and leaves no trace. `Ok`: it may, or the
/// strategy cannot tell.
pub(crate) async fn ask(attempt: &Attempt<'_>, input: &Input<'_>) -> Result<(), Outcome> {
    let consumer = attempt.consumer;
    if matches!(input.claimant.strategy, Strategy::External) {
        return external::ask(consumer, input).await;
    }
    if !input.claimant.can_tell() {
        return Ok(());
    }
    let _turn = consumer.shared.database.turn().await;
    let begun = consumer.shared.database.begin().await;
    let tx = begun.map_err(|error| Outcome::unavailable(&error))?;
    let claim = transaction::claim(consumer, &tx, attempt.routed, input).await;
    roll_back(tx).await;
    match claim {
        Err(Outcome::Uncounted) => Ok(()),
        claim => claim,
    }
}

/// A message that took effect before is acknowledged, and does what its handler asks for.
pub(crate) async fn conclude(attempt: &mut Attempt<'_>, claimant: Option<&Claimant<'_>>) -> Outcome {
    if let Err(outcome) = end(attempt).await {
        return outcome;
    }
    let handler = attempt.routed.handler();
    let wanted = handler.map_or(OnDuplicate::Skip, |handler| handler.options.on_duplicate);
    let (Some(claimant), OnDuplicate::Result | OnDuplicate::Reemit) = (claimant, wanted) else {
        return Outcome::Duplicate;
    };
    let consumer = attempt.consumer;
    let row = match claimant.row(consumer.shared.database.pool()).await {
        Ok(Some(row)) => row,
        Ok(None) => return Outcome::Duplicate,
        Err(error) => return attempt.later(&describe(&error)),
    };
    if wanted == OnDuplicate::Reemit {
        let ids = row.follow_ups.unwrap_or_default();
        // A crash in the middle: some are published once more than others. They are the same
        // events, which consumers know.
        if let Err(error) = reemit(consumer, &ids).await {
            return attempt.later(&error);
        }
    } else if let Some(result) = &row.result {
        consumer.shared.services.hooks.handled(Handled {
            consumer: consumer.name,
            message: attempt.message,
            duplicate: true,
            result: Some(result),
        });
    }
    Outcome::Duplicate
}

/// Ends the dead letter, or the row of attempts, of a message that took effect.
pub(crate) async fn end(attempt: &mut Attempt<'_>) -> Result<(), Outcome> {
    let ended = match attempt.routed.letter.clone() {
        Some(letter) => dead_letter::end(attempt, &letter).await,
        // Only a message that may have failed before can have a row of attempts.
        None if attempt.routed.memory.count_first => attempt.attempts().end().await,
        None => Ok(()),
    };
    // A crash before this: the next delivery or the next retry finds that the message took effect.
    ended.map_err(|error| attempt.later(&describe(&error)))
}

/// Publishes again what a handler recorded the first time: 16 bytes per message.
async fn reemit(consumer: &Consumer, ids: &[u8]) -> Result<(), String> {
    let shared = &consumer.shared;
    let pool = sea_orm::DatabaseConnection::clone(shared.database.pool());
    let store = SqlStore::new(pool)
        .with_names(&shared.services.outbox.names)
        .map_err(|error| error.to_string())?;
    for id in ids.chunks_exact(16) {
        let Ok(id) = Uuid::from_slice(id) else {
            continue;
        };
        // Boxed, because its type would be too deep for the compiler to see that it can be sent.
        match store.copy(MessageId::from(id)).boxed().await {
            Ok(false) => tracing::warn!(
                consumer = consumer.name,
                message_id = %id,
                "a follow-up event is not published again: it is pending still, or no longer kept in the outbox"
            ),
            Ok(true) => wake::notify(),
            Err(error) => return Err(describe(&error)),
        }
    }
    Ok(())
}

//! Detects messages that were handled before, and acknowledges them.
//!
//! Invariant: before the acknowledgement, the attempts row has status `handled` and the dead letter
//! is deleted.

use super::dead_letter;
use crate::database::roll_back;
use crate::dedup::Outcome;
use crate::handler::{Strategy, describe};
use crate::runtime::run::attempt::Attempt;
use crate::runtime::run::attempt::Input;
use crate::runtime::run::{external, transaction};

/// Checks whether the message was applied. `Ok`: the message may run, or the strategy cannot
/// decide.
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

pub(crate) async fn conclude(attempt: &mut Attempt<'_>) -> Outcome {
    let ended = match attempt.routed.letter.clone() {
        Some(letter) => dead_letter::end(attempt, &letter).await,
        None if attempt.routed.memory.count_first => attempt.attempts().end().await,
        None => Ok(()),
    };
    match ended {
        Ok(()) => Outcome::Duplicate,
        Err(error) => attempt.later(&describe(&error)),
    }
}

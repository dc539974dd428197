//! Messages that took effect before: how they are recognised, and which of their rows end.
//!
//! Invariants: the strategy is asked before an attempt is counted, so that a message that is done,
//! early or running elsewhere uses no attempt. The row of a message's attempts and its dead letter
//! end before the message is acknowledged. Not here: claims ([`crate::dedup::claim`]).

use super::dead_letter;
use crate::database::roll_back;
use crate::dedup::Outcome;
use crate::handler::{Strategy, describe};
use crate::runtime::run::attempt::Attempt;
use crate::runtime::run::attempt::Input;
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

/// Ends the dead letter, or the row of attempts, of a message that took effect before.
pub(crate) async fn conclude(attempt: &mut Attempt<'_>) -> Outcome {
    let ended = match attempt.routed.letter.clone() {
        Some(letter) => dead_letter::end(attempt, &letter).await,
        // Only a message that may have failed before can have a row of attempts.
        None if attempt.routed.memory.count_first => attempt.attempts().end().await,
        None => Ok(()),
    };
    // A crash before this: the next delivery or the next retry finds that the message took effect.
    match ended {
        Ok(()) => Outcome::Duplicate,
        Err(error) => attempt.later(&describe(&error)),
    }
}

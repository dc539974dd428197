//! One run of a handler: begin, claim, run, commit or roll back.
//!
//! Call `begin` and `commit` in tasks that are never aborted: a dropped `begin` would return a
//! connection with an open transaction to the pool.

use outbox_core::{Events, Message};
use sea_orm::{DatabaseTransaction, DbErr};

use super::attempt::Input;
use super::call::{Call, context_of};
use super::external;
use crate::database::{Trouble, roll_back, trouble, trouble_in};
use crate::dead_letter::retry;
use crate::dedup::{Cause, Outcome};
use crate::handler::{
    Effect, FromContext as _, HandlerContext, HandlerError, Outbox, Recorded, Registration, Strategy,
    describe,
};
use crate::panics::guard;
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::RoutedMessage;

pub(crate) const ERROR: &str = "error of the handler";

pub(crate) async fn run(
    consumer: &Consumer,
    routed: &RoutedMessage,
    input: &Input<'_>,
    stop: &Stop,
) -> Result<(), Outcome> {
    match input.handler.options.strategy {
        Strategy::External => external::run(consumer, routed, input, stop).await,
        _ => run_once(consumer, routed, input, stop).await,
    }
}

pub(crate) async fn run_once(
    consumer: &Consumer,
    routed: &RoutedMessage,
    input: &Input<'_>,
    stop: &Stop,
) -> Result<(), Outcome> {
    let call = Call {
        consumer,
        handler: input.handler,
        attempt: routed.memory.counted.unwrap_or(1),
        stop,
    };
    let messages = std::slice::from_ref(&input.message);
    if !runs_in_transaction(routed, input.handler) {
        return call.run(messages, None, &Recorded::default()).await.map(drop);
    }
    let database = &consumer.shared.database;
    let _turn = database.turn().await;
    let tx = database
        .begin()
        .await
        .map_err(|error| Outcome::unavailable(&error))?;
    // Until the commit, a crash rolls back row, effects and follow-up events together.
    if let Err(outcome) = claim(consumer, &tx, routed, input).await {
        roll_back(tx).await;
        return Err(outcome);
    }
    let recorded = Recorded::default();
    let finished = match call.run(messages, Some(&tx), &recorded).await {
        Ok(effect) => finish(consumer, &tx, input, effect, &recorded).await,
        Err(outcome) => Err(outcome),
    };
    match finished {
        Ok(()) => commit(tx, &recorded).await,
        Err(outcome) => {
            let connected = roll_back(tx).await;
            Err(match outcome {
                // A lost connection is an interruption, unless a save closed the connection because
                // it could not roll back.
                Outcome::Failed {
                    error,
                    cause: Cause::Handler,
                } if !connected && !recorded.is_lost() => Outcome::interrupted(error),
                outcome => outcome,
            })
        }
    }
}

pub(crate) async fn claim(
    consumer: &Consumer,
    tx: &DatabaseTransaction,
    routed: &RoutedMessage,
    input: &Input<'_>,
) -> Result<(), Outcome> {
    let (gaps, claimant) = (consumer.gaps(routed, Some(input.handler)), &input.claimant);
    let Some(letter) = &routed.letter else {
        let counted = routed.memory.counted.is_some();
        return Outcome::granted(claimant.claim(tx, counted, gaps).await);
    };
    let taken = retry::claim(tx, &consumer.shared.sql, consumer.name, letter, claimant.message).await;
    let was_dead = matches!(taken, Ok(Outcome::Revived));
    Outcome::granted(taken)?;
    Outcome::granted(claimant.claim_again(tx, was_dead, gaps).await)
}

async fn finish(
    consumer: &Consumer,
    tx: &DatabaseTransaction,
    input: &Input<'_>,
    effect: Effect,
    recorded: &Recorded,
) -> Result<(), Outcome> {
    let claimant = &input.claimant;
    let intact = recorded.integrity().verify(tx).await;
    intact.map_err(|error| gone(&error))?;
    emit(consumer, tx, claimant.message, effect.events, recorded).await?;
    if !recorded.in_doubt() {
        return Ok(());
    }
    match claimant.still_holds(tx).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(swallowed(None)),
        Err(error) => Err(gone(&error)),
    }
}

pub(crate) async fn commit(tx: DatabaseTransaction, recorded: &Recorded) -> Result<(), Outcome> {
    match tx.commit().await {
        Ok(()) => {
            // If the process crashes now, the redelivered message is a duplicate.
            recorded.wake();
            Ok(())
        }
        // A failed commit may have succeeded. The next run then finds the inbox row, and the
        // message is a duplicate.
        Err(error) if trouble(&error) != Trouble::Statement => Err(Outcome::interrupted(describe(&error))),
        Err(error) => Err(Outcome::failed(describe(&error))),
    }
}

pub(crate) async fn emit(
    consumer: &Consumer,
    transaction: &DatabaseTransaction,
    message: &Message,
    events: Events,
    recorded: &Recorded,
) -> Result<(), Outcome> {
    if events.is_empty() {
        return Ok(());
    }
    let context = HandlerContext {
        messages: &[],
        consumer: consumer.name,
        attempt: 0,
        transaction: Some(transaction),
        outbox: &consumer.shared.services.outbox,
        recorded,
        state: &consumer.shared.services.state,
    };
    let record = async {
        Outbox::from_context(&context)?.record(events).await?;
        Ok::<_, HandlerError>(())
    };
    let outcome = context_of(message).scope(record).await;
    outcome.map_err(|error| outcome_of(&error))
}

pub(crate) fn runs_in_transaction(routed: &RoutedMessage, handler: &Registration) -> bool {
    let may_do_without = matches!(handler.options.strategy, Strategy::Natural | Strategy::External);
    !may_do_without || needs_transaction(handler) || routed.letter.is_some()
}

pub(crate) fn needs_transaction(handler: &Registration) -> bool {
    handler.shape.transactional || handler.shape.emits
}

pub(crate) fn outcome_of(error: &HandlerError) -> Outcome {
    let fatal = error.is_fatal();
    let described = guard(ERROR, || (describe(error.source()), trouble_in(error.source())));
    if let Some(wait) = error.waits() {
        let error = described.map_or_else(|panicked| panicked.to_string(), |(text, _)| text);
        return Outcome::Deferred { wait, error };
    }
    let error = match described {
        Ok((text, Some(Trouble::Conflict | Trouble::Unavailable))) if !fatal => {
            return Outcome::interrupted(text);
        }
        Ok((text, _)) => text,
        Err(panicked) => panicked.to_string(),
    };
    let cause = if fatal { Cause::Fatal } else { Cause::Handler };
    Outcome::Failed { error, cause }
}

fn gone(error: &DbErr) -> Outcome {
    match trouble(error) {
        Trouble::Statement => swallowed(Some(error)),
        _ => Outcome::interrupted(describe(error)),
    }
}

fn swallowed(error: Option<&DbErr>) -> Outcome {
    let mut text = "handler returned Ok, but its transaction is lost: it continued after a database error; \
                    return database errors, or run a part that may fail inside `tx.begin()`"
        .to_owned();
    if let Some(error) = error {
        text = format!("{text}: {}", describe(error));
    }
    Outcome::failed(text)
}

//! Retries of dead letters. A dead letter is taken for this process before its handler runs.

use outbox_core::store::storable_error;
use sea_orm::DbErr;

use crate::database::finish;
use crate::dead_letter::retry::{self, StoredDeadLetter};
use crate::dead_letter::{NewDeadLetter, without_payload};
use crate::dedup::Outcome;
use crate::handler::describe;
use crate::hook::DeadDelivery;
use crate::runtime::consumer::Consumer;
use crate::runtime::run::attempt::Attempt;

pub(crate) async fn begin<M>(attempt: &mut Attempt<'_, M>) -> Option<Outcome> {
    let letter = attempt.routed.letter.clone()?;
    if !attempt.routed.memory.begun {
        let shared = &attempt.consumer.shared;
        match retry::begin(shared.database.pool(), &shared.sql, &letter).await {
            Ok(true) => attempt.routed.memory.begun = true,
            Ok(false) => return Some(Outcome::Skipped),
            Err(error) => return Some(attempt.later(&describe(&error))),
        }
    }
    let error = without_payload(&letter.incoming)?;
    Some(fail(attempt, &letter, &error).await)
}

pub(crate) async fn fail<M>(attempt: &mut Attempt<'_, M>, letter: &StoredDeadLetter, error: &str) -> Outcome {
    let (consumer, shared) = (attempt.consumer, &attempt.consumer.shared);
    let message = attempt.routed.message.as_ref().ok().cloned();
    let message = message.as_deref();
    let behind = message.map(|message| (consumer.name, &message.aggregate));
    let write = || retry::failed_again(shared.database.pool(), &shared.sql, letter, behind, error);
    match attempt.until_done(write).await {
        Ok(true) => {}
        // The dead letter was deleted; its payload must not reach a hook.
        Ok(false) => return Outcome::Skipped,
        Err(outcome) => return outcome,
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
    shared.services.hooks.dead_letter(dead);
    Outcome::DeadLettered
}

pub(crate) async fn end(attempt: &Attempt<'_>, letter: &StoredDeadLetter) -> Result<(), DbErr> {
    let shared = &attempt.consumer.shared;
    let _turn = shared.database.turn().await;
    let tx = shared.database.begin().await?;
    let claim = retry::claim(&tx, &shared.sql, attempt.consumer.name, letter, attempt.message).await;
    finish(tx, claim).await.map(drop)
}

pub(crate) fn report(consumer: &Consumer, letter: &NewDeadLetter<'_>) {
    let dead = DeadDelivery {
        consumer: consumer.name,
        incoming: letter.incoming,
        message: letter.message,
        error: letter.error,
        attempts: letter.attempts,
    };
    consumer.shared.services.hooks.dead_letter(dead);
}

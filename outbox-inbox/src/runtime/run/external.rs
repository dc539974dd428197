//! Strategy *external*: the handler runs under a claim in a store outside the database.
//!
//! A crash between the effect and the update of the store can repeat the effect.

use std::time::Duration;

use outbox_core::{ClaimToken, DedupKey, DedupStoreError, StoreClaim};
use tokio::time::Instant;

use super::attempt::Input;
use super::attempt::TROUBLE;
use super::transaction;
use crate::dedup::{Cause, Outcome};
use crate::handler::describe;
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::RoutedMessage;

const LEASE_MARGIN: Duration = Duration::from_secs(10);

pub(crate) async fn ask(consumer: &Consumer, input: &Input<'_>) -> Result<(), Outcome> {
    let Some(store) = &consumer.shared.services.store else {
        return Ok(());
    };
    let key = DedupKey::new(consumer.name, input.claimant.message.event_id);
    let lease = consumer.timeout(Some(input.handler)) + LEASE_MARGIN;
    let token = granted(store.claim(&key, lease).await, lease)?;
    let released = store.release(&key, token).await;
    released.map_err(|error| Outcome::unavailable(&error))
}

pub(crate) async fn run(
    consumer: &Consumer,
    routed: &RoutedMessage,
    input: &Input<'_>,
    stop: &Stop,
) -> Result<(), Outcome> {
    let Some(store) = &consumer.shared.services.store else {
        return Err(Outcome::Failed {
            error: "no deduplication store; set it with `Inbox::with_dedup_store`".to_owned(),
            cause: Cause::Unavailable,
        });
    };
    let event_id = input.claimant.message.event_id;
    let key = DedupKey::new(consumer.name, event_id);
    let lease = consumer.timeout(Some(input.handler)) + LEASE_MARGIN;
    let claimed = Instant::now();
    let token = granted(store.claim(&key, lease).await, lease)?;
    let outcome = transaction::run_once(consumer, routed, input, stop).await;
    let closed = match outcome {
        Ok(_) | Err(Outcome::Duplicate) => {
            let complete = || store.complete(&key, token, consumer.shared.config.retention);
            until_completed(complete, claimed + lease, stop).await
        }
        Err(_) => store.release(&key, token).await.map(|()| true),
    };
    match closed {
        Ok(true) => {}
        Ok(false) => tracing::error!(
            consumer = consumer.name,
            %event_id,
            "handler outlived its claim in the deduplication store; the message may have been applied twice"
        ),
        Err(error) => tracing::warn!(
            consumer = consumer.name,
            %event_id,
            error = %describe(&error),
            "deduplication store was not updated; the message may be applied again"
        ),
    }
    outcome
}

fn granted(claim: Result<StoreClaim, DedupStoreError>, lease: Duration) -> Result<ClaimToken, Outcome> {
    match claim {
        Ok(StoreClaim::Mine(token)) => Ok(token),
        Ok(StoreClaim::Done) => Err(Outcome::Duplicate),
        Ok(StoreClaim::InProgress) => Err(Outcome::postponed(lease / 4)),
        Err(error) => Err(Outcome::unavailable(&error)),
    }
}

/// Repeats `complete`, which is idempotent, until the store answers or the time `end` is reached.
async fn until_completed<F>(
    mut complete: impl FnMut() -> F,
    end: Instant,
    stop: &Stop,
) -> Result<bool, DedupStoreError>
where
    F: Future<Output = Result<bool, DedupStoreError>>,
{
    let mut tries = 0;
    loop {
        let error = match complete().await {
            Err(error @ DedupStoreError::Unavailable { .. }) => error,
            closed => return closed,
        };
        tries += 1;
        let delay = TROUBLE.delay(tries, &mut fastrand::Rng::new());
        if Instant::now() + delay >= end {
            return Err(error);
        }
        tracing::debug!(%error, "update of the deduplication store is retried");
        let sleep = tokio::time::sleep(delay);
        if stop.hard.run_until_cancelled(sleep).await.is_none() {
            return Err(error);
        }
    }
}

//! Deletes dead letters that nobody has decided about for long, if the configuration says so.
//!
//! Invariant: only open ones, only of the consumers of this inbox, and none that somebody is trying. Not here: what an operator deletes
//! ([`DeadLetters::discard`]).

use std::time::Duration;

use sea_orm::DbErr;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::interval::Rounds;
use crate::dead_letter::{DeadLetterSelection, DeadLetterStatus, DeadLetters};
use crate::handler::describe;

/// Deletes what has expired every so often, until the stop. The time in between is from half to one and a half of `every`.
pub(crate) async fn run(
    letters: DeadLetters,
    consumers: Vec<String>,
    retention: Duration,
    every: Duration,
    stop: CancellationToken,
) {
    let rounds = Rounds { every, stop };
    while rounds.pause(0.5..1.5).await {
        for consumer in &consumers {
            let (letters, of) = (letters.clone(), consumer.clone());
            let expiring = async move { expire(&letters, &of, retention).await };
            match rounds.database(expiring).await {
                None => return,
                Some(Ok(0)) => {}
                Some(Ok(expired)) => tracing::warn!(
                    consumer,
                    expired,
                    ?retention,
                    "dead letters were deleted, because nobody has decided about them"
                ),
                Some(Err(error)) => tracing::warn!(
                    consumer,
                    error = %describe(&error),
                    "expired dead letters could not be deleted, tried again later"
                ),
            }
        }
    }
}

/// Index on (consumer, created_at). The age is by the clocks of the database and of this machine.
async fn expire(letters: &DeadLetters, consumer: &str, retention: Duration) -> Result<u64, DbErr> {
    let expired = DeadLetterSelection::consumer(consumer)
        .status(DeadLetterStatus::Open)
        .until(OffsetDateTime::now_utc() - retention);
    letters.discard(&expired).await
}

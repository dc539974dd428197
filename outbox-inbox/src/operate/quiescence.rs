//! Waits until nothing of a paused consumer runs, as far as that can be known.
//!
//! Three facts are checked: the pause is older than the interval at which processes read pauses;
//! the broker has no open request for messages; the transactions of earlier handlers have ended. A
//! process that is stopped as a whole (SIGSTOP, a paused machine) and continues later is not
//! detected.

use std::time::Duration;

use outbox_core::Subscriber;
use tokio::time::{Instant, sleep};

use super::{Consumers, ConsumersError, Obstacle, rows};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(50);

/// Longest wait for processes that notice, and for requests that end.
const NOTICE_MAX: Duration = Duration::from_secs(5);

/// Longest wait for handlers that run: more than their time limit by default.
const RUN_MAX: Duration = Duration::from_secs(30);

fn refused(obstacle: impl FnOnce(String) -> Obstacle, consumer: &str) -> ConsumersError {
    ConsumersError::Refused(vec![obstacle(consumer.to_owned())])
}

/// Dropping the future has no effect.
pub(super) async fn until_quiet<S: Subscriber>(
    consumers: &Consumers<S>,
    consumer: &str,
) -> Result<(), ConsumersError> {
    let inbox = consumers.sql();
    let until = Instant::now() + NOTICE_MAX;
    loop {
        match rows::pause(&consumers.db, &inbox, consumer).await? {
            None => return Err(refused(Obstacle::NotPaused, consumer)),
            Some(pause) if pause.is_noticed => break,
            // Two clocks that disagree, or a time that somebody wrote by hand.
            Some(_) if Instant::now() >= until => break,
            Some(_) => sleep(EVERY).await,
        }
    }
    while is_receiving(consumers, consumer).await? {
        if Instant::now() >= until {
            return Err(refused(Obstacle::Receiving, consumer));
        }
        sleep(EVERY).await;
    }
    let until = Instant::now() + RUN_MAX;
    let mut before = rows::running(&consumers.db, &inbox).await?;
    while !before.is_empty() {
        if Instant::now() >= until {
            return Err(refused(Obstacle::Running, consumer));
        }
        sleep(EVERY).await;
        // Those that have begun since are not of this consumer.
        let now = rows::running(&consumers.db, &inbox).await?;
        before.retain(|transaction| now.contains(transaction));
    }
    Ok(())
}

pub(super) async fn is_receiving<S: Subscriber>(
    consumers: &Consumers<S>,
    consumer: &str,
) -> Result<bool, ConsumersError> {
    let standing = consumers.subscriber.standing(consumer).await?;
    Ok(standing.is_some_and(|standing| standing.is_receiving))
}

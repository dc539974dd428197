//! Follows the pauses of consumers ([`crate::pauses`]).
//!
//! Invariants: one statement a second for all consumers of a process, and none for each message; a process that cannot read the table keeps to what it read
//! last. A paused consumer has no subscription; what it has in memory stays there, and the broker hears of it. Not here: who pauses.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Subscriber, Subscription as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::attempt::TROUBLE;
use super::consumer::{Consumer, Shared};
use super::deliveries::Deliveries;
use super::dispatch::Dispatcher;
use crate::handler::describe;
use crate::pauses::paused;
use crate::telemetry;

/// How often a process looks.
const EVERY: Duration = Duration::from_secs(1);

/// Looks until it is known which consumers are paused, so that none of them begins. `false`: a stop came first.
pub(super) async fn first_look(
    shared: &Shared,
    consumers: &[Arc<Consumer>],
    stop: &CancellationToken,
) -> bool {
    let mut failures = 0;
    loop {
        let Some(looked) = stop.run_until_cancelled(look(shared, consumers)).await else {
            return false;
        };
        let Err(error) = looked else { return true };
        failures += 1;
        let pause = TROUBLE.delay(failures, &mut fastrand::Rng::new());
        tracing::warn!(
            error,
            ?pause,
            "which consumers are paused is not known, inbox waits"
        );
        if stop.run_until_cancelled(sleep(pause)).await.is_none() {
            return false;
        }
    }
}

/// Looks once a second, until the stop.
pub(super) async fn follow(shared: Arc<Shared>, consumers: Vec<Arc<Consumer>>, stop: CancellationToken) {
    let mut is_known = true;
    while stop.run_until_cancelled(sleep(EVERY)).await.is_some() {
        let Some(looked) = stop.run_until_cancelled(look(&shared, &consumers)).await else {
            return;
        };
        if let Err(error) = &looked
            && is_known
        {
            // Once for each outage.
            tracing::warn!(
                error,
                "which consumers are paused is not known, those that run go on"
            );
        }
        is_known = looked.is_ok();
    }
}

async fn look(shared: &Shared, consumers: &[Arc<Consumer>]) -> Result<(), String> {
    let paused = paused(shared.database.pool(), &shared.sql).await;
    let paused = paused.map_err(|error| describe(&error))?;
    for consumer in consumers {
        consumer.set_paused(paused.iter().any(|name| name == consumer.name));
    }
    Ok(())
}

impl<S: Subscriber> Dispatcher<S> {
    /// Begins or ends a pause, if the table says so.
    pub(super) fn follow_pause(&mut self) {
        let is_paused = *self.paused.borrow_and_update();
        let consumer = self.consumer.name;
        if is_paused != self.is_paused {
            tracing::info!(
                consumer,
                "consumer {}",
                if is_paused { "is paused" } else { "goes on" }
            );
        }
        self.is_paused = is_paused;
        self.consumer.vitals.paused(is_paused);
        telemetry::paused(consumer, is_paused);
        if !is_paused && let Some((idle, index)) = &self.idle {
            // What came meanwhile is on the stream.
            idle.set(*index, false);
        }
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::Closed(None));
        self.deliveries = match deliveries {
            // Other processes of an inbox that knows no pauses may go on, so the broker must not send anything here. What was fetched is taken in.
            Deliveries::Open(mut subscription) | Deliveries::Paused(_, Some(mut subscription))
                if is_paused =>
            {
                Deliveries::Ending(Box::pin(async move {
                    let fetched = subscription.stop().await;
                    (subscription, fetched)
                }))
            }
            Deliveries::Subscribing(_) | Deliveries::Paused(_, None) if is_paused => Deliveries::Closed(None),
            Deliveries::Closed(_) if !is_paused => self.subscribe(),
            deliveries => deliveries,
        };
    }
}

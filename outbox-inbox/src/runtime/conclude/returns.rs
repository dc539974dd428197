//! Returns deliveries to the broker. Before a return, the database subtracts the attempts that did
//! not run.
//!
//! Invariants: the process reports progress of a delivery until the broker has answered its return.
//! A stop waits for all returns, for a bounded time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::Delivery;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::failure::{self, CORRECTIONS_MAX};
use crate::panics::guard_async;
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::Left;
use crate::runtime::receive::origin::Origin;
use crate::runtime::receive::unanswered::InFlight;
use crate::runtime::run::job::ANSWERS_MAX;

#[derive(Debug)]
pub(crate) struct Returns<D> {
    tasks: TaskTracker,
    origins: Arc<Mutex<HashMap<u64, Origin<D>>>>,
}

impl<D> Default for Returns<D> {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            origins: Arc::default(),
        }
    }
}

impl<D: Delivery> Returns<D> {
    pub(crate) fn origins(&self) -> Vec<Origin<D>> {
        let origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        origins.values().cloned().collect()
    }

    pub(crate) fn give_back(
        &self,
        mut in_flight: Vec<InFlight<D>>,
        wait: Duration,
        consumer: Arc<Consumer>,
        stop: Stop,
    ) -> (Left, impl Future<Output = ()> + Send + use<D>) {
        let (origins, left) = (self.origins.clone(), Left::default());
        let own = in_flight
            .iter()
            .map(|routed| (routed.local_id, routed.origin.clone()));
        origins.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
        let leaves = left.clone();
        let task = self.tasks.track_future(async move {
            let late = async {
                stop.soft.cancelled().await;
                sleep(CORRECTIONS_MAX).await;
            };
            tokio::select! {
                () = take_back(&consumer, &mut in_flight) => {}
                () = late => tracing::debug!(consumer = consumer.name, "attempts stay counted although no handler ran"),
            }
            for InFlight { local_id, origin, .. } in in_flight {
                let wait = if stop.soft.is_cancelled() { Duration::ZERO } else { wait };
                let told = guard_async("broker's driver", || origin.give_back(wait)).await;
                if let Err(error) = told {
                    tracing::error!(consumer = consumer.name, %error, "a delivery could not be returned to the broker");
                }
                let mut origins = origins.lock().unwrap_or_else(PoisonError::into_inner);
                origins.remove(&local_id);
            }
            let _ = leaves.set(Instant::now());
        });
        (left, task)
    }

    /// Waits until the broker has answered all returned deliveries. Call it after the consumer has
    /// begun to stop.
    pub(crate) fn done(&self) -> impl Future<Output = ()> + Send + use<D> {
        let tasks = self.tasks.clone();
        tasks.close();
        async move {
            let _ = timeout(CORRECTIONS_MAX + ANSWERS_MAX, tasks.wait()).await;
        }
    }
}

async fn take_back<D>(consumer: &Consumer, in_flight: &mut [InFlight<D>]) {
    let recorded = in_flight
        .iter_mut()
        .filter(|in_flight| in_flight.routed.memory.is_recorded());
    let corrections = recorded.filter_map(|in_flight| {
        let message = in_flight.routed.message.as_ref().ok()?.clone();
        let routed = &mut in_flight.routed;
        Some(guard_async("database's driver", async move || {
            failure::take_back(consumer, routed, &message).await
        }))
    });
    for outcome in join_all(corrections).await {
        if let Err(error) = outcome {
            tracing::error!(consumer = consumer.name, %error, "an attempt stays counted although no handler ran");
        }
    }
}

//! Follows the pauses of consumers: one statement per second for all consumers of a process.
//!
//! If the table cannot be read, the last read state stays.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::handler::describe;
use crate::pauses::paused;
use crate::runtime::consumer::{Consumer, Shared};
use crate::runtime::run::attempt::TROUBLE;

const EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn first_look(
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
        tracing::warn!(error, ?pause, "paused consumers are unknown, inbox waits");
        if stop.run_until_cancelled(sleep(pause)).await.is_none() {
            return false;
        }
    }
}

pub(crate) async fn follow(shared: Arc<Shared>, consumers: Vec<Arc<Consumer>>, stop: CancellationToken) {
    let mut is_known = true;
    while stop.run_until_cancelled(sleep(EVERY)).await.is_some() {
        let Some(looked) = stop.run_until_cancelled(look(&shared, &consumers)).await else {
            return;
        };
        if let Err(error) = &looked
            && is_known
        {
            tracing::warn!(error, "paused consumers are unknown, running consumers continue");
        }
        is_known = looked.is_ok();
    }
}

async fn look(shared: &Shared, consumers: &[Arc<Consumer>]) -> Result<(), String> {
    let paused = paused(shared.database.pool(), &shared.sql).await;
    let paused = paused.map_err(|error| describe(&error))?;
    for consumer in consumers {
        consumer
            .pause
            .set(paused.iter().any(|name| name == consumer.name));
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Pause {
    is_paused: watch::Sender<bool>,
    resumed_at: Mutex<Option<Instant>>,
}

impl Default for Pause {
    fn default() -> Self {
        Self {
            is_paused: watch::Sender::new(false),
            resumed_at: Mutex::default(),
        }
    }
}

impl Pause {
    pub(crate) fn is_paused(&self) -> bool {
        *self.is_paused.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_paused.subscribe()
    }

    pub(crate) fn set(&self, is_paused: bool) {
        if self.is_paused() && !is_paused {
            *self.resumed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.is_paused
            .send_if_modified(|before| std::mem::replace(before, is_paused) != is_paused);
    }

    pub(crate) fn resumed_at(&self) -> Option<Instant> {
        *self.resumed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Watches a run from outside until the run has ended or makes no progress. Reads only databases
//! and broker.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::database::count;
use crate::evidence::Connections;
use crate::notices::NoticeFile;
use crate::order::Expected;
use crate::setup::{Part, Setup};
use crate::warn;
use crate::workers::Workers;

const INTERVAL: Duration = Duration::from_millis(200);

const STALLED_AFTER: Duration = Duration::from_secs(60);

/// How long a finished run waits for late effects before wrong counts of effects are reported.
const WRONG_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) orders: u64,
    pub(crate) committed: u64,
    pub(crate) published: u64,
    /// Numbers of effects, in the order of [`Part::CONSUMERS`].
    pub(crate) effects: [u64; 4],
    /// Unacknowledged messages; `None` before all consumers have subscribed.
    pub(crate) backlog: Option<u64>,
}

impl Counts {
    pub(crate) async fn read(setup: &Setup, dbs: &Connections, broker: &Broker) -> Result<Self> {
        let mut counts = Self {
            orders: count(&dbs[&Part::Service], "orders").await?,
            published: broker.messages().await?,
            backlog: broker.consumers().await?.map(|(backlog, _)| backlog),
            ..Self::default()
        };
        for part in Part::OUTBOXES {
            counts.committed += count(&dbs[&part], "outbox_messages").await?;
        }
        for (effects, part) in counts.effects.iter_mut().zip(Part::CONSUMERS) {
            *effects = match part {
                Part::Notifications => NoticeFile(setup.notices()).lines()?.len() as u64,
                _ => count(&dbs[&part], "effects").await?,
            };
        }
        Ok(counts)
    }

    fn at_rest(&self) -> bool {
        self.published >= self.committed && self.backlog == Some(0)
    }
}

pub(crate) async fn until_at_rest(
    look: impl AsyncFn() -> Result<Counts>,
    workers: &mut Workers,
    expected: Expected,
    shutdown: &CancellationToken,
) -> Result<bool> {
    let mut last = Counts::default();
    let mut moved = Instant::now();
    while shutdown.run_until_cancelled(sleep(INTERVAL)).await.is_some() {
        let finished = workers.service_has_finished()?;
        let counts = look().await.unwrap_or_else(|error| {
            warn(&outbox_core::describe(error.as_ref()));
            last
        });
        if counts != last {
            moved = Instant::now();
            last = counts;
        }
        let settled = counts.effects == expected.effects() || moved.elapsed() > WRONG_AFTER;
        if finished && counts.at_rest() && settled {
            return Ok(true);
        }
        if moved.elapsed() > STALLED_AFTER {
            warn("no progress for a minute; the run ends");
            return Ok(true);
        }
    }
    Ok(false)
}

//! Watches a run from outside until it is at rest.
//!
//! Invariant: the decision rests on the contents of databases and broker, and the watch always ends: after the last message, or when nothing changes
//! any more.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::database::count;
use crate::evidence::Connections;
use crate::failure::Failure;
use crate::notices::NoticeFile;
use crate::order::Expected;
use crate::progress::Progress;
use crate::setup::{Part, RelayKind, Setup};
use crate::workers::Workers;

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(200);

/// A run without progress for this long counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// A run at rest with wrong numbers gets this long to correct them.
const WRONG_AFTER: Duration = Duration::from_secs(3);

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) orders: u64,
    pub(crate) committed: u64,
    pub(crate) pending: u64,
    /// Effects so far, in the order of [`Part::CONSUMERS`].
    pub(crate) effects: [u64; 4],
    /// Messages not acknowledged; `None` before all consumers have subscribed.
    pub(crate) backlog: Option<u64>,
}

impl Counts {
    /// Reads the counts from databases and broker.
    pub(crate) async fn read(setup: &Setup, dbs: &Connections, broker: &Broker) -> Result<Self, Failure> {
        let mut counts = Self {
            orders: count(&dbs[&Part::Service], "SELECT COUNT(*) FROM orders").await?,
            backlog: broker.backlog().await?,
            ..Self::default()
        };
        for part in Part::OUTBOXES {
            counts.committed += count(&dbs[&part], "SELECT COUNT(*) FROM outbox_messages").await?;
            counts.pending += count(
                &dbs[&part],
                "SELECT COUNT(*) FROM outbox_messages WHERE status = 0",
            )
            .await?;
        }
        if setup.relay == RelayKind::Log {
            // Rows of the log do not change when they are published. The stream was read after the tables, so what is missing there has to come.
            counts.pending = counts.committed.saturating_sub(broker.messages().await?);
        }
        for (effects, part) in counts.effects.iter_mut().zip(Part::CONSUMERS) {
            *effects = match part {
                Part::Notifications => NoticeFile::count(&setup.notices()),
                _ => count(&dbs[&part], "SELECT COUNT(*) FROM effects").await?,
            };
        }
        Ok(counts)
    }

    /// Whether no relay and no consumer has anything left to do.
    fn at_rest(&self) -> bool {
        self.pending == 0 && self.backlog == Some(0)
    }

    /// Whether everything that the input demands has happened.
    fn complete(&self, expected: Expected) -> bool {
        self.committed == expected.messages() && self.effects == effects(expected)
    }
}

/// The effects that the input demands, in the order of [`Part::CONSUMERS`].
pub(crate) fn effects(expected: Expected) -> [u64; 4] {
    [
        expected.orders,
        expected.orders,
        expected.shipped,
        expected.shipped,
    ]
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No relay and no consumer has anything left to do.
    AtRest,
    /// Nothing changed for [`STALLED_AFTER`].
    Stalled,
    /// A person or a signal stopped it.
    Interrupted,
}

/// Restarts programs that die, until the run has ended in one of the three ways.
pub(crate) async fn until_at_rest(
    look: impl AsyncFn() -> Result<Counts, Failure>,
    workers: &mut Workers,
    expected: Expected,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<Outcome, Failure> {
    let mut last = Counts::default();
    let mut moved = Instant::now();
    loop {
        if shutdown.run_until_cancelled(sleep(INTERVAL)).await.is_none() {
            return Ok(Outcome::Interrupted);
        }
        let finished = workers.look_after(|text| progress.warn(text)).await?;
        let counts = match look().await {
            Ok(counts) => counts,
            Err(error) => {
                // A server may be restarting. The programs wait for it, and so does the watch.
                progress.warn(error.to_string());
                last
            }
        };
        progress.show(&counts);
        if counts != last {
            moved = Instant::now();
            last = counts;
        }
        if finished && counts.at_rest() && (counts.complete(expected) || moved.elapsed() > WRONG_AFTER) {
            return Ok(Outcome::AtRest);
        }
        if moved.elapsed() > STALLED_AFTER {
            return Ok(Outcome::Stalled);
        }
    }
}

//! Watches a run from outside until it has come to rest.
//!
//! Invariant: it decides by what databases and broker hold, and it always ends: after the last message, or when nothing moves any more.

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
use crate::setup::{Part, Setup};
use crate::workers::Workers;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// A run that does not move for so long is given up.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// A run that seems to be done, but whose numbers are not what they must be, gets so long to prove us wrong.
const WRONG_AFTER: Duration = Duration::from_secs(3);

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) orders: u64,
    pub(crate) committed: u64,
    pub(crate) pending: u64,
    /// In the order of [`Part::CONSUMERS`].
    pub(crate) effects: [u64; 4],
    /// Not acknowledged; `None` before all consumers have subscribed.
    pub(crate) backlog: Option<u64>,
}

impl Counts {
    /// Reads them.
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
        for (effects, part) in counts.effects.iter_mut().zip(Part::CONSUMERS) {
            *effects = match part {
                Part::Notifications => NoticeFile::count(&setup.notices()),
                _ => count(&dbs[&part], "SELECT COUNT(*) FROM effects").await?,
            };
        }
        Ok(counts)
    }

    /// Nothing is left to do for anybody.
    fn at_rest(&self) -> bool {
        self.pending == 0 && self.backlog == Some(0)
    }

    /// Everything that the input demands is there.
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

/// How a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is done, or at least nobody has anything left to do.
    AtRest,
    /// Nothing moved for a long time.
    Stalled,
    /// Somebody stopped it.
    Interrupted,
}

/// Looks after the programs until the run has ended in one of the three ways.
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
                // A server that restarts: the programs wait for it, and so do we.
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

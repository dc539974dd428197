//! Periodic work in the background, until a stop.
//!
//! Invariant: a stop waits for the running statement, because dropping the statement would close
//! its connection.

use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) struct Rounds {
    pub(crate) every: Duration,
    pub(crate) stop: CancellationToken,
}

impl Rounds {
    /// Pauses for a random time, so that processes do not run at the same time. Returns false if
    /// the work must stop.
    pub(crate) async fn pause(&self, part: Range<f64>) -> bool {
        let part = part.start + fastrand::f64() * (part.end - part.start);
        self.answer(sleep(self.every.mul_f64(part))).await.is_some()
    }

    pub(crate) async fn answer<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(wait).await
    }
}

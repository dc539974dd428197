//! Work that comes again and again beside the messages, until its stop.
//!
//! Invariant: a stop ends every wait at once, and drops no statement. A statement that is dropped costs its connection, so it ends in the background.

use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) struct Rounds {
    pub(crate) every: Duration,
    pub(crate) stop: CancellationToken,
}

impl Rounds {
    /// Pauses for a part of `every`, which is drawn anew each time, so that processes that start together do not work together. False after the stop.
    pub(crate) async fn pause(&self, part: Range<f64>) -> bool {
        let part = part.start + fastrand::f64() * (part.end - part.start);
        self.answer(sleep(self.every.mul_f64(part))).await.is_some()
    }

    /// Waits for what may be dropped. `None` after the stop.
    pub(crate) async fn answer<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(wait).await
    }

    /// Waits for work in the database. `None` after the stop; then the work goes on to its end.
    pub(crate) async fn database<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.answer(outbox_sea_orm::detached(work)).await
    }
}

//! Runs work to its end, even if its caller is dropped.
//!
//! If the future of `begin()` is dropped, sqlx 0.9.0 returns a connection with an open transaction
//! to its pool. Later statements on that connection are acknowledged, and then lost.
//!
//! Invariant: this crate begins and ends its transactions in a detached task.

use std::future::Future;

use tracing::Instrument as _;

/// Spawns the future in the caller's span and awaits it. A dropped caller does not stop it.
pub async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work.in_current_span()).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime shutdown aborts the task.
            Err(_) => std::future::pending().await,
        },
    }
}

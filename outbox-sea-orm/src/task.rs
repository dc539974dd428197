//! Runs work to its end, even if its caller is dropped.
//!
//! If the future of `begin()` is dropped, sqlx 0.9.0 returns a connection with an open transaction
//! to its pool. Later statements on it are acknowledged, and then lost.
//!
//! Invariant: this crate begins and ends its transactions in such a task. `store::session` or
//! database timeouts limit the work.

use std::future::Future;

use tracing::Instrument as _;

/// Spawns the future as a task in the caller's span, and waits for it. If the caller is dropped,
/// the task continues. A panic continues in the caller.
pub async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work.in_current_span()).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a shutdown of the runtime aborts the task. Then this caller is not polled again.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_survives_its_caller() {
        let (start, started) = tokio::sync::oneshot::channel::<()>();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let waiting = detached(async move {
            let _ = started.await;
            let _ = finish.send(());
        });
        let mut waiting = Box::pin(waiting);
        assert!(futures_poll_once(waiting.as_mut()).await.is_none());
        drop(waiting);
        start.send(()).unwrap();
        finished.await.unwrap();
    }

    #[tokio::test]
    #[should_panic(expected = "inner")]
    async fn panics_reach_the_caller() {
        detached(async { panic!("inner") }).await
    }

    async fn futures_poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}

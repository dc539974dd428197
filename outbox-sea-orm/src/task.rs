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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_continues_after_its_caller_is_dropped() {
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

//! Runs work to its end even if nobody waits for it any more.
//!
//! sqlx 0.9.0 returns a connection to its pool inside an open transaction if the future of `begin()` is dropped; later statements
//! on that connection are then acknowledged and lost. Invariant: transactions of this crate are begun and ended inside such a task.
//! Absent: cancelling. What the relay asks of a database is bounded in `store::session`; the rest by the database's own time-outs.

use std::future::Future;

/// Spawns the future as a task and waits for it. If the caller goes away, the task still runs to its end. A panic in it continues in the
/// caller.
pub async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The task is aborted by nobody but the runtime when it shuts down, and then this caller is not polled again either.
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

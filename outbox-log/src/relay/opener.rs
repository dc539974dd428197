//! Opens the log. The opening continues if its caller is dropped, because a relay waits only a
//! moment for its leases; the next caller gets the reader.
//!
//! Invariant: an unclaimed reader blocks other relays no longer than a lease, because the relay of
//! the reader may hang in a database call.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use outbox_core::StoreError;
use outbox_core::store::within;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;

/// Bound on an opening. Recreating a log waits for open transactions.
const OPEN_MAX: Duration = Duration::from_secs(120);

type Opened<R> = Result<Option<R>, StoreError>;

pub(super) struct Opening<R> {
    state: Arc<tokio::sync::Mutex<State<R>>>,
    ends: Mutex<Option<AbortHandle>>,
}

struct State<R> {
    number: u64,
    task: Option<JoinHandle<Opened<R>>>,
}

impl<R: Send + 'static> Opening<R> {
    pub(super) fn new() -> Self {
        let state = State {
            number: 0,
            task: None,
        };
        Self {
            state: Arc::new(tokio::sync::Mutex::new(state)),
            ends: Mutex::new(None),
        }
    }

    /// Returns the opened reader to exactly one caller. Cancel-safe.
    pub(super) async fn opened<F>(&self, kept_for: Duration, open: impl FnOnce() -> F) -> Opened<R>
    where
        F: Future<Output = Opened<R>> + Send + 'static,
    {
        let mut state = self.state.lock().await;
        if state.task.is_none() {
            state.number += 1;
            let (number, of) = (state.number, Arc::downgrade(&self.state));
            let open = open();
            let task = tokio::spawn(async move {
                let opened = within(OPEN_MAX, "the log could not be opened", open).await;
                tokio::spawn(let_go(of, number, kept_for));
                opened
            });
            *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
            state.task = Some(task);
        }
        let Some(task) = &mut state.task else {
            return Ok(None);
        };
        let opened = task.await;
        state.task = None;
        opened.unwrap_or_else(|panicked| {
            Err(StoreError::Database {
                context: "the log could not be opened",
                source: Box::new(panicked),
            })
        })
    }

    pub(super) fn end(&self) {
        self.abort();
        if let Ok(mut state) = self.state.try_lock() {
            state.task = None;
        }
    }
}

impl<R> Opening<R> {
    fn abort(&self) {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ends) = ends {
            ends.abort();
        }
    }
}

impl<R> Drop for Opening<R> {
    /// Ends the opening: an abandoned opening would briefly take the log from another relay.
    fn drop(&mut self) {
        self.abort();
    }
}

async fn let_go<R>(of: Weak<tokio::sync::Mutex<State<R>>>, number: u64, after: Duration) {
    sleep(after).await;
    let Some(state) = of.upgrade() else { return };
    let mut state = state.lock().await;
    if state.number == number && state.task.take().is_some() {
        tracing::debug!("an opened log was not used in time; releasing it for other relays");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;

    const KEPT_FOR: Duration = Duration::from_secs(15);

    struct Reader(Arc<AtomicBool>);

    impl Drop for Reader {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    async fn open(reads: Arc<AtomicBool>) -> Opened<Reader> {
        sleep(Duration::from_secs(1)).await;
        reads.store(true, Ordering::SeqCst);
        Ok(Some(Reader(reads)))
    }

    #[tokio::test(start_paused = true)]
    async fn unclaimed_reader_releases_the_log() {
        let (opening, reads) = (Opening::new(), Arc::new(AtomicBool::new(false)));
        let is_read = || reads.load(Ordering::SeqCst);
        let moment = Duration::from_millis(100);
        let opened = timeout(moment, opening.opened(KEPT_FOR, || open(reads.clone())));
        assert!(opened.await.is_err());
        sleep(KEPT_FOR).await;
        assert!(is_read(), "the reader is kept for the next call");
        sleep(moment + Duration::from_secs(1)).await;
        assert!(!is_read(), "the unclaimed reader has released the log");

        let reader = opening.opened(KEPT_FOR, || open(reads.clone())).await.unwrap();
        sleep(KEPT_FOR * 2).await;
        assert!(reader.is_some() && is_read(), "a call has claimed the reader");
    }

    #[tokio::test(start_paused = true)]
    async fn next_call_gets_the_opened_reader() {
        let (opening, reads) = (Opening::new(), Arc::new(AtomicBool::new(false)));
        let first = timeout(
            Duration::from_millis(100),
            opening.opened(KEPT_FOR, || open(reads.clone())),
        );
        assert!(first.await.is_err());
        sleep(Duration::from_secs(2)).await;
        let mut calls = 0;
        let reader = opening.opened(KEPT_FOR, || {
            calls += 1;
            open(reads.clone())
        });
        assert!(reader.await.unwrap().is_some());
        assert_eq!(calls, 0);
    }
}

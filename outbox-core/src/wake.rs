//! Wakes the relays of this process when messages are committed, here or in another process.
//!
//! A hint may be lost: relays also poll. Hints are process-wide, because a commit has no reference
//! to its relay. Hints from other processes are never forwarded, so hints cannot loop.

use std::sync::LazyLock;

use tokio::sync::watch;

static COMMITS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
static REMOTE: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Reports a commit to this process's relays. Call it after the commit, never before.
pub fn notify() {
    if isolation::notify(Wake::Local) {
        return;
    }
    COMMITS.send_modify(|commits| *commits = commits.wrapping_add(1));
}

/// Reports another process's commit to this process's relays.
pub fn notify_remote() {
    if isolation::notify(Wake::Remote) {
        return;
    }
    REMOTE.send_modify(|hints| *hints = hints.wrapping_add(1));
}

/// Hint origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wake {
    /// [`notify`]: a commit of this process.
    Local,
    /// [`notify_remote`]: a commit of another process, or of this process through the broker.
    Remote,
}

/// Listens for [`notify`] and [`notify_remote`]. Misses no notification between two waits.
#[derive(Debug)]
pub struct Listener {
    local: watch::Receiver<u64>,
    remote: watch::Receiver<u64>,
}

impl Listener {
    /// Listens from now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            local: subscribe(Wake::Local),
            remote: subscribe(Wake::Remote),
        }
    }

    /// Waits for a commit. Cancel-safe.
    pub async fn notified(&mut self) {
        self.woken().await;
    }

    /// As [`Self::notified`], with the commit's origin.
    pub async fn woken(&mut self) -> Wake {
        tokio::select! {
            biased;
            _ = self.local.changed() => Wake::Local,
            _ = self.remote.changed() => Wake::Remote,
        }
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self::new()
    }
}

fn subscribe(wake: Wake) -> watch::Receiver<u64> {
    if let Some(isolated) = isolation::subscribe(wake) {
        return isolated;
    }
    match wake {
        Wake::Local => COMMITS.subscribe(),
        Wake::Remote => REMOTE.subscribe(),
    }
}

#[doc(hidden)]
pub use isolation::{Isolation, isolate};

/// Isolates the wake-ups of a simulation, so that a seed always gives the same run. Each listener
/// has its own channel, because a channel wakes its receivers in any order.
mod isolation {
    use std::cell::RefCell;

    use tokio::sync::watch;

    use super::Wake;

    type Listeners = [Vec<watch::Sender<u64>>; 2];

    thread_local! {
        static LISTENERS: RefCell<Option<Listeners>> = const { RefCell::new(None) };
    }

    /// Guard of [`isolate`]. Dropping the guard restores the previous state.
    #[derive(Debug)]
    #[must_use = "the isolation ends when this is dropped"]
    pub struct Isolation(Option<Listeners>);

    /// Isolates this thread's hints and relays until the guard is dropped. Keep the guard on the
    /// same thread.
    ///
    /// For tests with a paused clock: Tokio's clock may jump past a timer when another thread wakes
    /// a task.
    pub fn isolate() -> Isolation {
        Isolation(LISTENERS.replace(Some(Listeners::default())))
    }

    impl Drop for Isolation {
        fn drop(&mut self) {
            LISTENERS.set(self.0.take());
        }
    }

    pub(super) fn subscribe(wake: Wake) -> Option<watch::Receiver<u64>> {
        LISTENERS.with_borrow_mut(|listeners| {
            let (sender, receiver) = watch::channel(0);
            listeners.as_mut()?[wake as usize].push(sender);
            Some(receiver)
        })
    }

    pub(super) fn notify(wake: Wake) -> bool {
        LISTENERS.with_borrow_mut(|listeners| {
            let Some(listeners) = listeners else { return false };
            let listeners = &mut listeners[wake as usize];
            listeners.retain(|listener| !listener.is_closed());
            for listener in listeners {
                listener.send_modify(|commits| *commits = commits.wrapping_add(1));
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn remote_hints_wake_relays_and_are_not_forwarded() {
        let mut relay = Listener::new();
        let passed_on = COMMITS.subscribe();
        notify_remote();
        while relay.woken().await != Wake::Remote {}
        assert!(!passed_on.same_channel(&REMOTE.subscribe()));
        notify();
        while relay.woken().await != Wake::Local {}
    }

    #[tokio::test]
    async fn remote_hints_stay_on_an_isolated_thread() {
        let outside = Listener::new();
        let _alone = isolate();
        let mut inside = Listener::new();
        assert!(!inside.remote.same_channel(&outside.remote));
        notify_remote();
        assert_eq!(inside.woken().await, Wake::Remote);
    }
}

//! Wakes the relays of this process when messages are committed, here or in another process.
//!
//! A wake-up is only a hint: relays also poll. Hints are process-wide, because a commit has no
//! reference to the relay of its database. Remote hints are never forwarded, so hints cannot loop.

use std::sync::LazyLock;

use tokio::sync::watch;

static COMMITS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
static REMOTE: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Signals the relays of this process that messages were committed. Call it after the commit, never
/// before.
pub fn notify() {
    if isolation::notify(Wake::Local) {
        return;
    }
    COMMITS.send_modify(|commits| *commits = commits.wrapping_add(1));
}

/// Signals the relays of this process that another process has committed messages.
pub fn notify_remote() {
    if isolation::notify(Wake::Remote) {
        return;
    }
    REMOTE.send_modify(|hints| *hints = hints.wrapping_add(1));
}

/// The origin of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wake {
    /// [`notify`]: this process.
    Local,
    /// [`notify_remote`]: another process, or this process through the broker.
    Remote,
}

/// Listens for [`notify`] and [`notify_remote`]. A notification between two waits is not missed.
#[derive(Debug)]
pub struct Listener {
    local: watch::Receiver<u64>,
    remote: watch::Receiver<u64>,
}

impl Listener {
    /// Listens from now on.
    #[must_use]
    pub fn new() -> Self {
        Self {
            local: subscribe(Wake::Local),
            remote: subscribe(Wake::Remote),
        }
    }

    /// Waits for the next commit. Cancel-safe.
    pub async fn notified(&mut self) {
        self.woken().await;
    }

    /// As [`Self::notified`]; returns the origin of the hint.
    pub async fn woken(&mut self) -> Wake {
        // The senders live as long as the process, or as the simulation.
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

/// Listens for [`notify`] only, for forwarding hints. A notification between two waits is not
/// missed.
#[derive(Debug)]
pub struct LocalListener(watch::Receiver<u64>);

impl LocalListener {
    /// Listens from now on.
    #[must_use]
    pub fn new() -> Self {
        Self(COMMITS.subscribe())
    }

    /// Waits for the next commit in this process. Cancel-safe.
    pub async fn notified(&mut self) {
        // The sender lives as long as the process.
        let _ = self.0.changed().await;
    }
}

impl Default for LocalListener {
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

/// Wake-ups of one thread, so that a simulation is deterministic. Each listener has its own
/// channel, because a channel wakes its receivers in no particular order.
mod isolation {
    use std::cell::RefCell;

    use tokio::sync::watch;

    use super::Wake;

    /// Local and remote hints.
    type Listeners = [Vec<watch::Sender<u64>>; 2];

    thread_local! {
        static LISTENERS: RefCell<Option<Listeners>> = const { RefCell::new(None) };
    }

    /// Dropping it restores the previous state.
    #[derive(Debug)]
    #[must_use = "the isolation ends when this is dropped"]
    pub struct Isolation(Option<Listeners>);

    /// Isolates this thread until the returned guard is dropped: its hints and relays reach only
    /// each other. Keep the guard on the same thread.
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

    /// Returns false if this thread is not isolated.
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
    async fn remote_hints_wake_relays_and_are_not_passed_on() {
        let mut relay = Listener::new();
        let passed_on = COMMITS.subscribe();
        notify_remote();
        // Separate channels prove that remote hints are not forwarded, whatever other tests commit.
        while relay.woken().await != Wake::Remote {}
        assert!(!passed_on.same_channel(&REMOTE.subscribe()));
        notify();
        while relay.woken().await != Wake::Local {}
    }

    /// Otherwise the log relay of one test wakes the relays of all others.
    #[tokio::test]
    async fn remote_hints_of_an_isolated_thread_stay_on_it() {
        let outside = Listener::new();
        let _alone = isolate();
        let mut inside = Listener::new();
        assert!(!inside.remote.same_channel(&outside.remote));
        notify_remote();
        assert_eq!(inside.woken().await, Wake::Remote);
    }
}

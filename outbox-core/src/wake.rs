//! Wakes the relays of this process as soon as something was committed in it.
//!
//! A hint, nothing more: relays poll as well, so a lost or a spurious wake-up costs a moment and never a message. It is
//! process-wide because a commit does not know which relay serves its database.

use std::sync::LazyLock;

use tokio::sync::watch;

static COMMITS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Tells the relays of this process that messages were committed. Call it after the commit, never before.
pub fn notify() {
    COMMITS.send_modify(|commits| *commits = commits.wrapping_add(1));
}

/// Listens for [`notify`]; what was notified between two waits is not missed.
#[derive(Debug)]
pub struct Listener(watch::Receiver<u64>);

impl Listener {
    /// Listens from now on.
    #[must_use]
    pub fn new() -> Self {
        Self(COMMITS.subscribe())
    }

    /// Waits for the next commit. Cancel-safe.
    pub async fn notified(&mut self) {
        // The sender lives as long as the process, so this cannot fail.
        let _ = self.0.changed().await;
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self::new()
    }
}

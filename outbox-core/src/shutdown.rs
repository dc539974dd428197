//! Turns SIGTERM and ctrl-c into a cancellation token.

use std::sync::LazyLock;

pub use tokio_util::sync::CancellationToken;

/// A token that ctrl-c or (on Unix) SIGTERM cancels. Call this once, inside a Tokio runtime, and
/// pass clones to [`Relay::run`](crate::Relay::run) and the inbox. A second signal cancels
/// [`hurry`].
///
/// If signal handlers cannot be installed, an error is logged and the token is never cancelled.
#[must_use]
pub fn on_signals() -> CancellationToken {
    let token = CancellationToken::new();
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "cannot listen for signals");
            return token;
        }
    };
    let cancelled = token.clone();
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(
            signal,
            "shutting down; a second signal stops running work at once"
        );
        cancelled.cancel();
        let signal = signals.next().await;
        tracing::warn!(
            signal,
            "stopping at once; running work is rolled back and released"
        );
        hurry().cancel();
    });
    token
}

/// This process's token, cancelled by a second ctrl-c or SIGTERM. Relays and inboxes then end
/// within a few seconds: handlers are rolled back, their messages return to the broker, and
/// unconfirmed messages are published again later.
///
/// Cancel the token to hurry the shutdown without a signal. Await the token next to a server that
/// is slow to stop.
#[must_use]
pub fn hurry() -> CancellationToken {
    static HURRY: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);
    HURRY.clone()
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) -> &'static str {
        self.0.recv().await;
        "ctrl-c"
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn early_signal_is_not_missed() {
        let token = on_signals();
        let pid = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.unwrap().success());
        token.cancelled().await;
    }
}

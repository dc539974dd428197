//! Turns SIGTERM and ctrl-c into a token that relays and consumers drain on.

pub use tokio_util::sync::CancellationToken;

/// A token that is cancelled by ctrl-c or SIGTERM (on Unix). Call it once, inside a Tokio runtime, and pass clones to
/// [`Relay::run`](crate::Relay::run) and the inbox.
///
/// If the handlers cannot be installed the token is never cancelled, and an error is logged: the process then ends by the
/// signal's default action, which the outbox survives like any crash.
#[must_use]
pub fn on_signals() -> CancellationToken {
    let token = CancellationToken::new();
    // Before this returns: a signal that comes early must not end the process.
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "cannot listen for signals");
            return token;
        }
    };
    let cancelled = token.clone();
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(signal, "shutting down");
        cancelled.cancel();
    });
    token
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

    async fn next(mut self) -> &'static str {
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

    async fn next(mut self) -> &'static str {
        self.0.recv().await;
        "ctrl-c"
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// On one thread, so that no task runs before the signal is sent. Without a handler it would end this process.
    #[tokio::test]
    async fn a_signal_right_after_the_call_is_not_missed() {
        let token = on_signals();
        let pid = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.unwrap().success());
        token.cancelled().await;
    }
}

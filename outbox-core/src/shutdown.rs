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
    let cancelled = token.clone();
    tokio::spawn(async move {
        match wait().await {
            Ok(signal) => {
                tracing::info!(signal, "shutting down");
                cancelled.cancel();
            }
            Err(error) => tracing::error!(%error, "cannot listen for signals"),
        }
    });
    token
}

#[cfg(unix)]
async fn wait() -> std::io::Result<&'static str> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.map(|()| "SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

#[cfg(not(unix))]
async fn wait() -> std::io::Result<&'static str> {
    tokio::signal::ctrl_c().await.map(|()| "ctrl-c")
}

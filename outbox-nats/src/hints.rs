//! Signals commits to relays in other processes.
//!
//! A writer's process runs [`send`], and a relay's process runs [`listen`]; a process may run both.
//! A hint is an empty core NATS message, neither stored nor confirmed. Each hint costs a relay one
//! query.
//!
//! Invariants: no message depends on hints, because relays also poll. The rate of hints is bounded,
//! independent of the commit rate.
//!
//! ```no_run
//! # async fn demo(client: outbox_nats::async_nats::Client) {
//! use outbox_core::shutdown;
//! use outbox_nats::hints;
//!
//! let stop = shutdown::on_signals();
//! tokio::spawn(hints::send(client.clone(), hints::DEFAULT_SUBJECT, stop.clone()));
//! tokio::spawn(hints::listen(client, hints::DEFAULT_SUBJECT, stop));
//! # }
//! ```

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Subject, ToSubject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use outbox_core::shutdown::CancellationToken;
use outbox_core::wake::{self, Wake};
use tokio::time::{sleep, timeout};

/// Default subject of hints. No stream may capture this subject. Users need the permission to
/// publish and to subscribe to the subject.
pub const DEFAULT_SUBJECT: &str = "outbox.hint";

/// Minimum time between two hints of one process: at most 50 per second.
pub const INTERVAL: Duration = Duration::from_millis(20);

const RETRY: Duration = Duration::from_secs(1);

/// Sends a hint after commits in this process ([`wake::notify`]), until `shutdown`.
///
/// The first hint is sent at once; all commits of the following [`INTERVAL`] cause a single hint.
/// While the broker is unavailable, hints are dropped. Cancel-safe.
pub async fn send(client: Client, subject: impl ToSubject, shutdown: CancellationToken) {
    let subject = subject.to_subject();
    let mut commits = wake::Listener::new();
    let run = async {
        loop {
            while commits.woken().await != Wake::Local {}
            hint(&client, &subject).await;
            sleep(INTERVAL).await;
        }
    };
    let _ = shutdown.run_until_cancelled(run).await;
}

/// Wakes the relays of this process ([`wake::notify_remote`]) at each hint, until `shutdown`.
/// Cancel-safe.
pub async fn listen(client: Client, subject: impl ToSubject, shutdown: CancellationToken) {
    let subject = subject.to_subject();
    let run = async {
        loop {
            match client.subscribe(subject.clone()).await {
                // The subscription survives reconnections, and ends with the client.
                Ok(mut hints) => {
                    while hints.next().await.is_some() {
                        tracing::debug!(%subject, "a hint wakes the relays");
                        wake::notify_remote();
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, %subject, "cannot listen for hints");
                }
            }
            sleep(RETRY).await;
        }
    };
    let _ = shutdown.run_until_cancelled(run).await;
}

async fn hint(client: &Client, subject: &Subject) {
    if client.connection_state() != State::Connected {
        tracing::debug!(%subject, "not connected, a hint was dropped");
        return;
    }
    // `publish` waits only for room in the client's queue.
    match timeout(INTERVAL, client.publish(subject.clone(), Bytes::new())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, %subject, "a hint was not sent"),
        Err(_) => tracing::debug!(%subject, "the send buffer is full, a hint was dropped"),
    }
}

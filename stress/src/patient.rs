//! Work with a nats-server and a database that other programs keep busy as well, on a machine that may stand still for seconds: nothing here fails because of that.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt as _;
use outbox_core::SetupKind;
use outbox_log::{LogError, PostgresLog};
use outbox_nats::{EventStream, ProvisionError};
use tokio::time::{sleep, timeout};

use outbox_test_servers::{Failure, SOON};

/// How soon something is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// A request that a killed server has lost is not waited for much longer than one that is slow.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// A consumer outlives a reader that stands still for this long. The server's default is 5 s.
const INACTIVE: Duration = Duration::from_secs(120);
/// How often a log is set up. Each time it waits for half a minute.
const SET_UPS: u32 = 10;

/// Connects to a nats-server and makes sure that the stream exists there.
///
/// # Errors
///
/// If the server refuses something, or does not answer in [`SOON`].
pub async fn provision(stream: &EventStream, url: &str) -> Result<Client, Failure> {
    let provisioned = async {
        let client = stream.connect(url).await?;
        loop {
            match stream.provision(&client).await {
                Err(ProvisionError::Unavailable { .. }) => sleep(AGAIN).await,
                Err(error) => return Err(Failure::from(error)),
                Ok(_) => return Ok(client),
            }
        }
    };
    timeout(SOON, provisioned).await?
}

/// A context whose requests wait longer than a machine stands still. The default of publishes is 5 s, that of other requests 10 s.
pub fn context(client: Client) -> Context {
    ContextBuilder::new().timeout(ANSWER_MAX).build(client)
}

/// What `read` makes of each message on the stream, in order.
///
/// # Errors
///
/// If the server fails, or `read` does.
pub async fn read_all<R>(
    stream: &Stream,
    read: impl Fn(&Message) -> Result<R, Failure>,
) -> Result<Vec<R>, Failure> {
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        inactive_threshold: INACTIVE,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let info = consumer.cached_info();
    let mut messages = consumer.stream().max_messages_per_batch(5000).messages().await?;
    let mut all = Vec::new();
    while (all.len() as u64) < info.num_pending {
        let message = messages.next().await.ok_or("the stream ended early")??;
        all.push(read(&message)?);
    }
    stream.delete_consumer(&info.name).await?;
    Ok(all)
}

/// Sets a log up. Its slot begins when all transactions of the server have ended, also those of others, which may take longer than `init` waits.
///
/// # Errors
///
/// Those of [`PostgresLog::init`].
pub async fn init(log: &PostgresLog) -> Result<(), LogError> {
    for _ in 1..SET_UPS {
        match log.init().await {
            Err(LogError::Setup(problem)) if problem.kind == SetupKind::OpenTransactions => {}
            done => return done,
        }
    }
    log.init().await
}

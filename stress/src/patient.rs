//! Helpers for busy servers and machines that stall for seconds.

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

const AGAIN: Duration = Duration::from_millis(100);
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The inactivity limit of consumers, longer than a stall of the reader. The server's default is 5
/// s.
const INACTIVE: Duration = Duration::from_secs(120);
/// Number of attempts to set up a log. Each attempt waits for half a minute.
const SET_UPS: u32 = 10;

/// Connects to a nats-server and provisions the stream.
///
/// # Errors
///
/// Returns an error if the server rejects the request or does not answer within [`SOON`].
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

/// A JetStream context with a request timeout of 30 s. The defaults are 5 s for publishes and 10 s
/// for other requests.
pub fn context(client: Client) -> Context {
    ContextBuilder::new().timeout(ANSWER_MAX).build(client)
}

/// Applies `read` to each message of the stream, in order.
///
/// # Errors
///
/// Returns an error if the server or `read` fails.
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

/// Sets up a log. Retries while open transactions of the server delay the slot.
///
/// # Errors
///
/// As [`PostgresLog::init`].
pub async fn init(log: &PostgresLog) -> Result<(), LogError> {
    for _ in 1..SET_UPS {
        match log.init().await {
            Err(LogError::Setup(problem)) if problem.kind == SetupKind::OpenTransactions => {}
            done => return done,
        }
    }
    log.init().await
}

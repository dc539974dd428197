//! The values that pages show live: read once per process and interval, however many pages are open.
//!
//! Invariants: at most one read runs at a time, in a task of its own, so that a reader who goes away neither ends it nor makes another one. An error is kept as
//! long as a value is: a database that is down is not asked more often than one that is up.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use super::visit::Problem;
use crate::serial;
use crate::{BrokerCheck, ConsumerRow, Status};

/// How long a sample of the outbox is shown. Each costs three statements.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// How long a look at the stream and at its consumers is shown. Each consumer costs two statements.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What pages show live.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    /// How the outbox stands.
    pub(super) status: Status,
    /// The consumers of the stream, or why they are not known.
    pub(super) consumers: Result<Vec<ConsumerRow>, String>,
    /// When it was read, by the clock of this machine.
    #[serde(serialize_with = "serial::time")]
    pub(super) sampled_at: OffsetDateTime,
    /// Counts the samples of this process.
    #[serde(skip)]
    pub(super) number: u64,
}

/// A value and the time at which it was read.
type Kept<T> = Mutex<Option<(Instant, T)>>;

/// What was found out about the stream.
#[derive(Debug, Clone)]
struct Look {
    broker: BrokerCheck,
    consumers: Result<Vec<ConsumerRow>, String>,
}

/// The last sample.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    sample: Kept<Result<Arc<Sample>, Problem>>,
    look: Kept<Look>,
}

/// The sample of now: the last one, or another one if that is too old.
///
/// # Errors
///
/// [`Problem`] if the database did not answer.
pub(super) async fn latest(app: &Arc<App>) -> Result<Arc<Sample>, Problem> {
    let app = app.clone();
    // The task goes on if whoever asked has gone.
    match tokio::spawn(async move { sample(&app).await }).await {
        Ok(sample) => sample,
        Err(error) => Err(Problem::Failed(error.to_string())),
    }
}

async fn sample(app: &App) -> Result<Arc<Sample>, Problem> {
    let mut kept = app.sampler.sample.lock().await;
    let mut number = 1;
    if let Some((at, sample)) = &*kept {
        if at.elapsed() < SAMPLE_EVERY {
            return sample.clone();
        }
        number += sample.as_ref().map_or(0, |sample| sample.number);
    }
    let look = look(app).await;
    let status = app.ask(app.outbox.status(&look.broker)).await;
    let sample = status.map(|status| {
        Arc::new(Sample {
            status,
            consumers: look.consumers,
            sampled_at: OffsetDateTime::now_utc(),
            number,
        })
    });
    *kept = Some((Instant::now(), sample.clone()));
    sample
}

/// What is known of the stream. It is only called while the sample is locked.
async fn look(app: &App) -> Look {
    let mut kept = app.sampler.look.lock().await;
    if let Some((at, look)) = &*kept
        && at.elapsed() < LOOK_EVERY
    {
        return look.clone();
    }
    let silent = || format!("no answer within {:?}", app.timeout);
    let (broker, consumers) = tokio::join!(
        tokio::time::timeout(app.timeout, app.stream.broker()),
        tokio::time::timeout(app.timeout, app.stream.consumers()),
    );
    let look = Look {
        broker: broker.unwrap_or_else(|_| BrokerCheck::Failed(silent())),
        consumers: consumers.unwrap_or_else(|_| Err(silent())),
    };
    *kept = Some((Instant::now(), look.clone()));
    look
}

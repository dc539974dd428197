//! The values that pages show live: read once per process and interval, however many pages are open.
//!
//! Invariants: at most one read runs at a time, in a task of its own, so that a reader who goes away neither ends it nor makes another one. An error is kept as
//! long as a value is: a database that is down is not asked more often than one that is up.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use super::history::{History, Point, STEP};
use super::visit::Problem;
use crate::serial;
use crate::{BrokerCheck, ConsumerRow, ConsumerSeen, Forecast, LogView, Seen, Status, StreamUse};

/// How long a sample of the outbox is shown. Each costs four statements, and a fifth one if messages wait.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// How long a look at the stream and at its consumers is shown. The consumers cost two statements, however many there are,
/// and the log four.
const LOOK_EVERY: Duration = STEP;

/// What pages show live.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    /// How the outbox stands.
    pub(super) status: Status,
    /// The consumers of the stream; empty if they are not known.
    pub(super) consumers: Vec<ConsumerRow>,
    /// Why they are not known.
    pub(super) consumers_error: Option<String>,
    /// How the stream is filled, if it is known.
    pub(super) stream: Option<StreamUse>,
    /// How the log of a log relay stands, if there is one.
    pub(super) log: Option<LogView>,
    /// Why that is not known.
    pub(super) log_error: Option<String>,
    /// What is to come, if it goes on like this.
    pub(super) forecast: Forecast,
    /// The last hour, oldest first, as far as this process has seen it.
    #[serde(serialize_with = "points")]
    pub(super) history: Arc<[Point]>,
    /// When it was read, by the clock of this machine.
    #[serde(serialize_with = "serial::time")]
    pub(super) sampled_at: OffsetDateTime,
    /// Counts the samples of this process.
    #[serde(skip)]
    pub(super) number: u64,
}

fn points<S: Serializer>(points: &Arc<[Point]>, to: S) -> Result<S::Ok, S::Error> {
    points[..].serialize(to)
}

/// A value and the time at which it was read.
type Kept<T> = Mutex<Option<(Instant, T)>>;

/// What was found out about the stream.
#[derive(Debug, Clone)]
struct Look {
    broker: BrokerCheck,
    consumers: Result<Vec<ConsumerRow>, String>,
    stream: Option<StreamUse>,
    log: Result<Option<LogView>, String>,
    /// Whether it was made just now.
    is_new: bool,
}

/// The last sample, and what was seen before.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    sample: Kept<Result<Arc<Sample>, Problem>>,
    look: Kept<Look>,
    history: Mutex<History>,
}

/// Samples from now on, whoever looks, for as long as there are pages. Without a runtime it does nothing.
pub(super) fn keep_on(app: &Arc<App>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let app = Arc::downgrade(app);
    runtime.spawn(async move {
        while let Some(app) = app.upgrade() {
            // An error is shown to whoever looks.
            let _ = latest(&app).await;
            drop(app);
            tokio::time::sleep(STEP).await;
        }
    });
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
    let sampled_at = OffsetDateTime::now_utc();
    let sample = match status {
        Ok(mut status) => {
            if let Some(stream) = &look.stream {
                status.see_stream(stream);
            }
            if let Ok(Some(LogView {
                reason: Some(reason), ..
            })) = &look.log
            {
                status.add(reason.state, reason.what.as_str(), reason.next.clone());
            }
            let mut history = app.sampler.history.lock().await;
            if look.is_new {
                history.add(sampled_at, seen(&status, &look));
            }
            let (consumers, consumers_error) = match look.consumers {
                Ok(consumers) => {
                    status.see_consumers(&consumers);
                    (consumers, None)
                }
                Err(error) => (Vec::new(), Some(error)),
            };
            let (log, log_error) = match look.log {
                Ok(log) => (log, None),
                Err(error) => (None, Some(error)),
            };
            Ok(Arc::new(Sample {
                status,
                log,
                log_error,
                consumers,
                consumers_error,
                stream: look.stream,
                forecast: history.forecast(),
                history: history.points(),
                sampled_at,
                number,
            }))
        }
        Err(problem) => Err(problem),
    };
    *kept = Some((Instant::now(), sample.clone()));
    sample
}

fn seen(status: &Status, look: &Look) -> Seen {
    let backlog = &status.backlog;
    let consumers = look.consumers.iter().flatten();
    Seen {
        pending: Some((backlog.pending_estimate, backlog.pending_is_exact)),
        stream: look.stream.clone(),
        consumers: consumers.filter_map(ConsumerSeen::of).collect(),
    }
}

/// What is known of the stream. It is only called while the sample is locked.
async fn look(app: &App) -> Look {
    let mut kept = app.sampler.look.lock().await;
    if let Some((at, look)) = &*kept
        && at.elapsed() < LOOK_EVERY
    {
        return Look {
            is_new: false,
            ..look.clone()
        };
    }
    let earlier = kept.take();
    let silent = || format!("no answer within {:?}", app.timeout);
    let (broker, consumers, filled, log) = tokio::join!(
        tokio::time::timeout(app.timeout, app.stream.broker()),
        tokio::time::timeout(app.timeout, app.stream.consumers()),
        tokio::time::timeout(app.timeout, app.stream.filled()),
        tokio::time::timeout(app.timeout, app.stream.log()),
    );
    let mut consumers = consumers.unwrap_or_else(|_| Err(silent()));
    // Two looks show what one does not.
    if let (
        Ok(rows),
        Some((
            at,
            Look {
                consumers: Ok(before),
                ..
            },
        )),
    ) = (&mut consumers, &earlier)
    {
        for row in rows {
            let earlier = before.iter().find(|before| before.consumer == row.consumer);
            if let Some(earlier) = earlier {
                row.look_back(earlier, at.elapsed());
            }
        }
    }
    let look = Look {
        broker: broker.unwrap_or_else(|_| BrokerCheck::Failed(silent())),
        consumers,
        // What is wrong with the stream, the check of the broker says.
        stream: filled.ok().and_then(Result::ok).flatten(),
        log: log.unwrap_or_else(|_| Err(silent())),
        is_new: true,
    };
    *kept = Some((Instant::now(), look.clone()));
    look
}

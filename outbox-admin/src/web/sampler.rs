//! Samples for the overview, shared by all open pages.
//!
//! Invariant: at most one read runs, in its own task, so a disconnecting browser neither stops nor
//! starts a read. Errors are kept as long as values.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::OutboxReader;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use super::visit::Problem;
use crate::doctor::StreamFacts;
use crate::stream_view::answered;
use crate::{BrokerCheck, ConsumerRow, ConsumerSeen, Forecast, Reason, RelayRow, Seen, Status, forecast};

const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// Query interval: consumers cost two statements in total, the log four.
const LOOK_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) status: Status,
    pub(super) relays: Vec<RelayRow>,
    pub(super) consumers: Vec<ConsumerRow>,
    /// Why consumers could not be read.
    pub(super) consumers_error: Option<String>,
    pub(super) log_error: Option<String>,
    pub(super) forecast: Forecast,
    pub(super) sampled_at: OffsetDateTime,
}

type Kept<T> = Mutex<Option<(Instant, T)>>;

#[derive(Debug, Clone)]
struct Look {
    broker: BrokerCheck,
    consumers: Result<Vec<ConsumerRow>, String>,
    stream: Option<StreamFacts>,
    log: Result<Option<Reason>, String>,
    forecast: Forecast,
}

impl Look {
    fn seen(&self) -> Seen {
        Seen {
            pending: None,
            max_age: self.stream.as_ref().and_then(|stream| stream.max_age),
            consumers: self
                .consumers
                .iter()
                .flatten()
                .filter_map(ConsumerSeen::of)
                .collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sampler {
    sample: Kept<Result<Arc<Sample>, Problem>>,
    look: Kept<Look>,
}

pub(super) async fn latest<S: OutboxReader>(app: &Arc<App<S>>) -> Result<Arc<Sample>, Problem> {
    let app = app.clone();
    match tokio::spawn(async move { sample(&app).await }).await {
        Ok(sample) => sample,
        Err(error) => Err(Problem::Failed(error.to_string())),
    }
}

async fn sample<S: OutboxReader>(app: &App<S>) -> Result<Arc<Sample>, Problem> {
    let mut kept = app.sampler.sample.lock().await;
    if let Some((at, sample)) = &*kept
        && at.elapsed() < SAMPLE_EVERY
    {
        return sample.clone();
    }
    let look = look(app).await;
    let sample = read(app, look).await.map(Arc::new);
    *kept = Some((Instant::now(), sample.clone()));
    sample
}

async fn read<S: OutboxReader>(app: &App<S>, look: Look) -> Result<Sample, Problem> {
    let mut status = app.ask(crate::status(&app.store, &look.broker)).await?;
    let relays = app.ask(crate::relays(&app.store)).await?;
    if let Some(stream) = &look.stream {
        status.see_stream(stream);
    }
    let mut log_error = None;
    match look.log {
        Ok(None) => {}
        Ok(Some(reason)) => status.add(reason.state, reason.what, reason.next),
        Err(error) => log_error = Some(error),
    }
    let (consumers, consumers_error) = match look.consumers {
        Ok(consumers) => {
            status.see_consumers(&consumers);
            (consumers, None)
        }
        Err(error) => (Vec::new(), Some(error)),
    };
    Ok(Sample {
        status,
        relays,
        consumers,
        consumers_error,
        log_error,
        forecast: look.forecast,
        sampled_at: OffsetDateTime::now_utc(),
    })
}

/// Lock order: `sample`, then `look`.
async fn look<S>(app: &App<S>) -> Look {
    let mut kept = app.sampler.look.lock().await;
    if let Some((at, look)) = &*kept
        && at.elapsed() < LOOK_EVERY
    {
        return look.clone();
    }
    let silent = || format!("no answer within {:?}", app.timeout);
    let (broker, consumers, filled, log) = tokio::join!(
        tokio::time::timeout(app.timeout, app.stream.broker()),
        answered(app.timeout, app.stream.consumers()),
        answered(app.timeout, app.stream.filled()),
        answered(app.timeout, app.stream.log()),
    );
    let mut look = Look {
        broker: broker.unwrap_or_else(|_| BrokerCheck::Failed(silent())),
        consumers,
        stream: filled.ok().flatten(),
        log,
        forecast: forecast(&Seen::default(), &Seen::default(), Duration::ZERO),
    };
    // Rates and idle consumers need two observations.
    if let Some((at, earlier)) = kept.take() {
        let passed = at.elapsed();
        for row in look.consumers.iter_mut().flatten() {
            let mut before = earlier.consumers.iter().flatten();
            if let Some(before) = before.find(|before| before.consumer == row.consumer) {
                row.look_back(before, passed);
            }
        }
        look.forecast = forecast(&earlier.seen(), &look.seen(), passed);
    }
    *kept = Some((Instant::now(), look.clone()));
    look
}

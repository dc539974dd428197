//! Samples for the overview, shared by all open pages.
//!
//! Invariant: at most one read runs, in its own task, so a disconnecting browser neither stops nor
//! starts a read. Errors are kept as long as values.

use std::sync::Arc;
use std::time::Duration;

use outbox::core::OutboxReader;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Dashboard;
use super::visit::Problem;
use crate::admin::stream_view::answered;
use crate::admin::{BrokerCheck, ConsumerRow, ListedConsumer, RelayRow, Status};

/// The refresh interval of an open page.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) status: Status,
    pub(super) relays: Vec<RelayRow>,
    pub(super) consumers: Result<Vec<ListedConsumer>, String>,
    pub(super) log_error: Option<String>,
    pub(super) sampled_at: OffsetDateTime,
}

impl Sample {
    fn row(&self, consumer: &str) -> Option<&ConsumerRow> {
        let mut rows = self.consumers.iter().flatten().map(|listed| &listed.row);
        rows.find(|row| row.consumer == consumer)
    }
}

type Kept = (Instant, Result<Arc<Sample>, Problem>);

#[derive(Debug, Default)]
pub(super) struct Sampler(Mutex<Option<Kept>>);

pub(super) async fn latest<S: OutboxReader>(app: &Arc<Dashboard<S>>) -> Result<Arc<Sample>, Problem> {
    let app = app.clone();
    match tokio::spawn(async move { sample(&app).await }).await {
        Ok(sample) => sample,
        Err(error) => Err(Problem::Failed(error.to_string())),
    }
}

async fn sample<S: OutboxReader>(app: &Dashboard<S>) -> Result<Arc<Sample>, Problem> {
    let mut kept = app.sampler.0.lock().await;
    if let Some((at, sample)) = &*kept
        && at.elapsed() < SAMPLE_EVERY
    {
        return sample.clone();
    }
    let earlier = kept
        .take()
        .and_then(|(at, sample)| Some((sample.ok()?, at.elapsed())));
    let sample = read(app, earlier).await.map(Arc::new);
    *kept = Some((Instant::now(), sample.clone()));
    sample
}

async fn read<S: OutboxReader>(
    app: &Dashboard<S>,
    earlier: Option<(Arc<Sample>, Duration)>,
) -> Result<Sample, Problem> {
    let (broker, consumers, filled, log) = tokio::join!(
        tokio::time::timeout(app.timeout, app.stream.broker()),
        answered(app.timeout, app.stream.consumers()),
        answered(app.timeout, app.stream.filled()),
        answered(app.timeout, app.stream.log()),
    );
    let silent = |_| BrokerCheck::Failed(format!("no answer within {:?}", app.timeout));
    let broker = broker.unwrap_or_else(silent);
    let mut status = app.ask(crate::admin::status(&app.store, &broker)).await?;
    let relays = app.ask(crate::admin::relays(&app.store)).await?;
    let stream = filled.ok().flatten();
    if let Some(stream) = &stream {
        status.see_stream(stream);
    }
    let mut log_error = None;
    match log {
        Ok(None) => {}
        Ok(Some(reason)) => status.add(reason.state, reason.what, reason.next),
        Err(error) => log_error = Some(error),
    }
    let max_age = stream.and_then(|stream| stream.max_age);
    let consumers = consumers.map(|rows| {
        let list = |row: ConsumerRow| {
            let earlier = earlier.as_ref();
            let before = earlier.and_then(|(sample, passed)| Some((sample.row(&row.consumer)?, *passed)));
            ListedConsumer::observed(row, before, max_age)
        };
        rows.into_iter().map(list).collect::<Vec<_>>()
    });
    if let Ok(consumers) = &consumers {
        status.see_consumers(consumers.iter().map(|listed| &listed.row));
    }
    Ok(Sample {
        status,
        relays,
        consumers,
        log_error,
        sampled_at: OffsetDateTime::now_utc(),
    })
}

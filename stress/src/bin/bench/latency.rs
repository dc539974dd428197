//! The time from the call of the commit to the receipt by a JetStream consumer, and the queries of
//! an idle relay.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use futures_util::StreamExt as _;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{MessageId, RelayConfig, RelayError, RelayReport};
use outbox_log::LogRelay;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore, record};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Options;
use crate::figure::{Figure, Series};
use crate::load::{AGGREGATES, Moved, account_id};
use crate::log::log_of;
use crate::relay::{CONNECTIONS, relay};
use crate::servers::{Schema, Servers, Stream};
use crate::{Failure, Result, check};

const PATIENCE: Duration = Duration::from_secs(60);
const SETTLING: Duration = Duration::from_secs(5);
/// Seconds of the measurement at rest: the server reports the statistics of its sessions late.
const REST_MIN: u64 = 20;
/// PostgreSQL reports the statistics of an idle backend after 10 s.
const REPORTING: Duration = Duration::from_secs(11);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    SameProcess,
    OtherProcess,
    OtherProcessAtLog,
}

#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Latency {
    pub(crate) fn of(mut millis: Vec<f64>) -> Self {
        millis.sort_by(f64::total_cmp);
        Self {
            p50: percentile(&millis, 50),
            p99: percentile(&millis, 99),
        }
    }
}

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let seconds = options.size(20, 5);
    let mut series = Series::default();
    for _ in options.runs("latency") {
        let same = measure(servers, Place::SameProcess, 500, seconds).await?;
        series.add("latency_same_process_p50", same.p50);
        series.add("latency_same_process_p99", same.p99);
        let other = measure(servers, Place::OtherProcess, 500, seconds).await?;
        series.add("latency_polling_p50", other.p50);
        series.add("latency_polling_p99", other.p99);
        let sparse = measure(servers, Place::OtherProcess, 2, seconds).await?;
        series.add("latency_polling_sparse_p50", sparse.p50);
        series.add("latency_polling_sparse_p99", sparse.p99);
        series.add("idle_queries_per_s", rest(servers, seconds).await?);
    }
    let poll = RelayConfig::default().poll_max.as_secs_f64() * 1000.0;
    let millis = |name| series.alone(name, "ms");
    Ok(vec![
        millis("latency_same_process_p50").at_most(5.0),
        millis("latency_same_process_p99").at_most(25.0),
        millis("latency_polling_p50").at_most(poll),
        millis("latency_polling_p99"),
        millis("latency_polling_sparse_p50").at_most(poll),
        millis("latency_polling_sparse_p99"),
        series.alone("idle_queries_per_s", "1/s").at_most(2.0),
    ])
}

pub(crate) async fn measure(
    servers: &Servers,
    place: Place,
    per_second: u64,
    seconds: u64,
) -> Result<Latency> {
    let messages = per_second * seconds;
    let outbox = servers.outbox().await?;
    let stream = servers.stream().await?;
    let arrivals = tokio::spawn(arrivals(observer(&stream).await?, messages));
    let work = async {
        sleep(SETTLING).await;
        let committed = write(&outbox, per_second, seconds).await?;
        match place {
            // A log relay settles no rows, so only the stream shows when all messages are
            // published.
            Place::OtherProcessAtLog => until(async || Ok(stream.messages().await? == messages)).await?,
            _ => until(async || Ok(outbox.unsettled().await? == 0)).await?,
        }
        Ok::<_, Failure>(committed)
    };
    let (committed, published) = match place {
        Place::SameProcess => {
            let shutdown = CancellationToken::new();
            let relay = relay(&outbox, &stream).await?;
            let work = async {
                let committed = work.await;
                shutdown.cancel();
                committed
            };
            let (report, committed) = tokio::join!(relay.run(shutdown.clone()), work);
            (committed?, report?.published)
        }
        Place::OtherProcess => {
            let relay = relay(&outbox, &stream).await?;
            beside(work, async move |shutdown| relay.run(shutdown).await).await?
        }
        Place::OtherProcessAtLog => {
            let log = log_of(&outbox).await?;
            log.init().await?;
            let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
            let relay = LogRelay::new(store, log_of(&outbox).await?, stream.publisher().await?);
            let done = beside(work, async move |shutdown| relay.run(shutdown).await).await?;
            log.drop().await?;
            done
        }
    };
    check("messages published", published, messages)?;
    let arrived = arrivals.await??;
    stream.remove(messages).await?;
    outbox.remove().await?;
    let millis = committed
        .iter()
        .map(|(id, at)| {
            let arrived = arrived
                .get(&id.to_string())
                .ok_or("a committed message did not arrive")?;
            Ok(arrived.saturating_duration_since(*at).as_secs_f64() * 1000.0)
        })
        .collect::<Result<Vec<f64>>>()?;
    Ok(Latency::of(millis))
}

async fn beside<T>(
    work: impl Future<Output = Result<T>>,
    run: impl AsyncFnOnce(CancellationToken) -> Result<RelayReport, RelayError> + Send + 'static,
) -> Result<(T, u64)> {
    let shutdown = CancellationToken::new();
    let relay = tokio::task::spawn_blocking({
        let shutdown = shutdown.clone();
        move || {
            let _isolation = outbox_core::wake::isolate();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            Ok::<_, Failure>(runtime.block_on(run(shutdown))?.published)
        }
    });
    let stop = shutdown.drop_guard();
    let done = work.await?;
    drop(stop);
    Ok((done, relay.await??))
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

async fn write(outbox: &Schema, per_second: u64, seconds: u64) -> Result<Vec<(MessageId, Instant)>> {
    let connection = OutboxConnection::new(outbox.db.clone(), OutboxConfig::default());
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(per_second)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut writers = JoinSet::new();
    for n in 0..per_second * seconds {
        ticks.tick().await;
        let connection = connection.clone();
        writers.spawn(async move {
            let tx = connection.begin().await?;
            let ids = record(&tx, [Moved::new(account_id(n % AGGREGATES), 0)]).await?;
            let committing = Instant::now();
            tx.commit().await?;
            let id = ids.first().copied().ok_or("recording returned no id")?;
            Ok::<_, Failure>((id, committing))
        });
    }
    writers.join_all().await.into_iter().collect()
}

async fn until(is_done: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let done = async {
        while !is_done().await? {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let late = |_| "the relay did not publish everything in time";
    timeout(PATIENCE, done).await.map_err(late)?
}

async fn observer(stream: &Stream) -> Result<Ordered> {
    let client = async_nats::connect(stream.nats_url.as_str()).await?;
    let config = OrderedConfig {
        deliver_subject: client.new_inbox(),
        deliver_policy: DeliverPolicy::All,
        ..OrderedConfig::default()
    };
    let context = async_nats::jetstream::new(client);
    let consumer = context
        .get_stream(&stream.name)
        .await?
        .create_consumer(config)
        .await?;
    Ok(consumer.messages().await?)
}

async fn arrivals(mut messages: Ordered, expected: u64) -> Result<HashMap<String, Instant>> {
    let mut arrived = HashMap::new();
    while (arrived.len() as u64) < expected {
        let next = timeout(PATIENCE, messages.next())
            .await
            .map_err(|_| "messages did not arrive")?;
        let message = next.ok_or("the observer's consumer ended")??;
        let at = Instant::now();
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("Nats-Msg-Id"));
        arrived.insert(id.ok_or("a message has no id")?.to_string(), at);
    }
    Ok(arrived)
}

async fn rest(servers: &Servers, seconds: u64) -> Result<f64> {
    let outbox = servers.outbox().await?;
    let stream = servers.stream().await?;
    let relay = relay(&outbox, &stream).await?;
    let seconds = seconds.max(REST_MIN);
    let watch = async {
        sleep(SETTLING + REPORTING).await;
        let (before, start) = (servers.transactions().await?, Instant::now());
        sleep(Duration::from_secs(seconds)).await;
        let after = servers.transactions().await?.saturating_sub(before);
        Ok(after as f64 / start.elapsed().as_secs_f64())
    };
    let (rate, published) = beside(watch, async move |shutdown| relay.run(shutdown).await).await?;
    check("messages published at rest", published, 0)?;
    stream.remove(0).await?;
    outbox.remove().await?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((percentile(&sorted, 50), percentile(&sorted, 99)), (100.0, 198.0));
        assert_eq!(percentile(&[7.0], 99), 7.0);
    }
}

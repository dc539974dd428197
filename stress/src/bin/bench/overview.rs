//! What the overview of the dashboard asks of the database while a large backlog waits, and a small one.
//!
//! The figures are times of reads as this program waits for them, which is more than the database works. `overview_reads` are the five that the sampler of the
//! dashboard makes for one sample while messages wait for another attempt. `overview_look` is its look at the consumers, with what it asks the broker, and at the log:
//! six more reads, every ten seconds.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use outbox_core::store::BACKLOG_COUNT_MAX;
use outbox_core::{
    FetchRequest, MessageStatus, OutboxAdmin as _, OutboxReader as _, OutboxStore as _, OwnerId, Selection,
    Settlement, Verdict,
};
use outbox_inbox::Consumers;
use outbox_sea_orm::SqlStore;
use sea_orm::ConnectionTrait as _;

use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, fill};
use crate::log::log_of;
use crate::servers::{Schema, Servers, Stream};
use crate::{Options, Result, check};

/// The waiting messages that a sample looks at, and that each outbox has.
const WAITING: NonZeroU32 = NonZeroU32::new(1_000).unwrap();
/// The consumers of a look, and the dead letters of each: as many as it counts.
const CONSUMERS: [&str; 3] = ["billing", "inventory", "shipping"];
const LETTERS: u64 = 10_000;
/// Longer than a run.
const FOR_LONG: Duration = Duration::from_secs(24 * 3_600);

/// Measures this group.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let (small, large) = (2 * AGGREGATES, options.size(5_000_000, 500_000));
    eprintln!("overview: recording {large} messages");
    let backlog = servers.outbox().await?;
    fill(&backlog, AGGREGATES, large).await?;
    make_wait(&backlog).await?;
    let few = servers.outbox().await?;
    fill(&few, AGGREGATES, small).await?;
    make_wait(&few).await?;
    let stream = consumed(&backlog, servers).await?;
    let (mut deep, mut shallow, mut looks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs() {
        deep.push(reads(&backlog, large.min(BACKLOG_COUNT_MAX)).await?);
        shallow.push(reads(&few, small).await?);
        looks.push(look(&backlog, &stream).await?);
    }
    stream.remove(0).await?;
    backlog.remove().await?;
    few.remove().await?;
    Ok(vec![
        Figure::alone("overview_reads", "ms", &deep).target(Target::AtMost(50.0)),
        Figure::against("overview_reads_growth", "ms", &deep, &shallow),
        Figure::alone("overview_look", "ms", &looks),
    ])
}

/// Lets the first messages fail as they do in a relay, so that they wait for another attempt.
async fn make_wait(outbox: &Schema) -> Result<()> {
    let store = SqlStore::new(outbox.pool(1).await?);
    let owner = OwnerId::fresh();
    let leases = store.acquire(owner, FOR_LONG, 64).await?;
    let request = FetchRequest {
        leases: &leases,
        limit: WAITING,
        bytes: usize::MAX,
        in_flight: &[],
    };
    let settlements: Vec<Settlement> = store
        .fetch(request)
        .await?
        .due
        .iter()
        .map(|row| {
            row.with_verdict(Verdict::Blocked {
                delay: FOR_LONG,
                error: Some("no answer".to_owned()),
                attempt: false,
            })
        })
        .collect();
    let settled = store.settle(&leases, &settlements).await?;
    check("messages set aside", settled as u64, u64::from(WAITING.get()))?;
    store.release(owner, &leases).await?;
    Ok(())
}

/// The milliseconds of one sample.
async fn reads(outbox: &Schema, pending: u64) -> Result<f64> {
    let store = SqlStore::new(outbox.pool(1).await?);
    // The session, its statements and the first pages of the index are there before.
    store.backlog().await?;
    let begun = Instant::now();
    let backlog = store.backlog().await?;
    store.relays().await?;
    let partitions = store.partitions().await?;
    store.pauses().await?;
    let of_waiting = Selection::all().status(MessageStatus::Waiting);
    let waiting = store.list(&of_waiting, WAITING).await?;
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    check("messages counted", backlog.pending, pending)?;
    check(
        "waiting messages read",
        waiting.len() as u64,
        u64::from(WAITING.get()),
    )?;
    check("partitions read", partitions.len() as u64, 64)?;
    Ok(millis)
}

/// A stream with consumers, whose inbox is in the database of the outbox.
async fn consumed(outbox: &Schema, servers: &Servers) -> Result<Stream> {
    let stream = servers.stream().await?;
    outbox_inbox::migrate(&outbox.db).await?;
    for consumer in CONSUMERS {
        stream.add_consumer_at_end(consumer).await?;
        let letters = format!(
            "INSERT INTO inbox_dead_letters \
             (id, consumer, event_id, event_type, aggregate_type, aggregate_id, sequence, source, subject, stream_sequence, headers, payload, error, attempts, \
             status, created_at) \
             SELECT gen_random_uuid(), '{consumer}', gen_random_uuid(), 'order.placed', 'order', n::text, 1, 'shop', 'events.order', n, '[]', '', 'no price', 3, 0, \
             clock_timestamp() FROM generate_series(1, {LETTERS}) n"
        );
        outbox.db.execute_unprepared(&letters).await?;
    }
    Ok(stream)
}

/// The milliseconds of one look.
async fn look(outbox: &Schema, stream: &Stream) -> Result<f64> {
    let consumers = Consumers::new(outbox.pool(1).await?, stream.subscriber().await?);
    let log = log_of(outbox).await?;
    // The sessions and their statements are there before.
    consumers.lags(CONSUMERS).await?;
    log.status().await?;
    let begun = Instant::now();
    let lags = consumers.lags(CONSUMERS).await?;
    log.status().await?;
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    check("consumers looked at", lags.len() as u64, CONSUMERS.len() as u64)?;
    for (consumer, lag) in &lags {
        check(consumer, lag.dead_letters_open, LETTERS)?;
    }
    Ok(millis)
}

//! Reads a stream and its consumers from NATS and the inbox tables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::admin::ConsumerRow;
use crate::admin::doctor::StreamFacts;
use futures_util::TryStreamExt as _;
use outbox::core::describe;
use outbox::inbox::{Consumers, ConsumersError};
use outbox::nats::JetStreamSubscriber;
use outbox::nats::async_nats::jetstream::consumer;
use outbox::nats::async_nats::jetstream::context::ConsumerInfoErrorKind;
use outbox::nats::async_nats::jetstream::stream::{
    DiscardPolicy, Info, RetentionPolicy, StorageType, Stream as Handle,
};
use outbox::nats::async_nats::{Client, jetstream};
use tokio::time::Instant;

use super::place::Place;
use crate::failure::CommandError;

const WATCH_EVERY: Duration = Duration::from_millis(500);
const WATCHED_FOR: Duration = Duration::from_secs(3);
pub(super) const WATCHED_MAX: Duration = Duration::from_millis(3_500);

pub(super) fn consumers_of(
    place: &Place,
    client: Client,
) -> Result<Consumers<JetStreamSubscriber>, CommandError> {
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    let stream = place
        .outbox
        .section
        .stream
        .event_stream()
        .map_err(CommandError::configuration)?;
    let subscriber = stream.subscriber(client);
    Ok(Consumers::new(place.store.connection().clone(), subscriber).with_names(names))
}

pub(super) async fn durables(place: &Place, client: Client) -> Result<Vec<consumer::Info>, String> {
    let handle = handle(place, client).await?;
    let consumers = handle.consumers().try_collect::<Vec<_>>().await;
    let mut durables = consumers.map_err(|error| describe(&error))?;
    durables.retain(|info| info.config.durable_name.is_some());
    Ok(durables)
}

async fn names_on_stream(place: &Place, client: Client) -> Result<BTreeSet<String>, CommandError> {
    let durables = durables(place, client).await.map_err(|error| {
        let stream = &place.outbox.section.stream.name;
        CommandError::failed(format!(
            "the consumers of stream `{stream}` cannot be listed: {error}"
        ))
    })?;
    Ok(durables.into_iter().map(|info| info.name).collect())
}

/// `None` if the consumer's existence is unknown.
pub(super) async fn has_consumer(place: &Place, client: Client, consumer: &str) -> Option<bool> {
    let stream = &place.outbox.section.stream.name;
    let handle = jetstream::new(client).get_stream_no_info(stream).await.ok()?;
    match handle.consumer_info(consumer).await {
        Ok(_) => Some(true),
        Err(error) => (error.kind() == ConsumerInfoErrorKind::NotFound).then_some(false),
    }
}

/// Consumers of the stream and paused consumers. Without inbox tables, each row has the reason why
/// its dead letters and pauses are unknown.
pub(super) async fn rows(place: &Place, client: Client) -> Result<Vec<ConsumerRow>, CommandError> {
    let consumers = consumers_of(place, client.clone())?;
    let names = names_on_stream(place, client).await?;
    match tokio::time::timeout(place.timeout, crate::admin::consumers(&consumers, names.clone())).await {
        Ok(Err(ConsumersError::Database(error))) => {
            let looked = place.ask(crate::admin::consumers_on_stream(&consumers, names));
            let (mut rows, unseen) = (looked.await?, place.explain(&error));
            for row in &mut rows {
                row.unseen = Some(unseen.clone());
            }
            Ok(rows)
        }
        Ok(rows) => place.ask(std::future::ready(rows)).await,
        Err(_) => Err(CommandError::failed(format!(
            "no answer within {:?}",
            place.timeout
        ))),
    }
}

/// As [`rows`], but observes consumers whose state is unclear again, for up to [`WATCHED_MAX`].
pub(super) async fn watched(place: &Place, client: Client) -> Result<Vec<ConsumerRow>, CommandError> {
    let consumers = consumers_of(place, client.clone())?;
    let mut rows = rows(place, client).await?;
    let begun = Instant::now();
    // Slow answers delay a sleep, but not a tick: the last observation is after `WATCHED_FOR`.
    let mut ticks = tokio::time::interval_at(begun + WATCH_EVERY, WATCH_EVERY);
    let watching = async {
        while begun.elapsed() < WATCHED_FOR && rows.iter().any(ConsumerRow::is_doubtful) {
            ticks.tick().await;
            for row in rows.iter_mut().filter(|row| row.is_doubtful()) {
                // The earlier observations count if this one fails.
                if let Ok(Some(standing)) = consumers.standing(&row.consumer).await {
                    row.look_again(&standing, begun.elapsed());
                }
            }
        }
    };
    let _ = tokio::time::timeout(WATCHED_MAX, watching).await;
    Ok(rows)
}

/// Each reason once, with the names of its consumers.
pub(super) fn unseen(rows: &[ConsumerRow]) -> Option<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in rows {
        let names = row.unseen.as_deref().map(|why| reasons.entry(why).or_default());
        names.into_iter().for_each(|names| names.push(&row.consumer));
    }
    let reasons = reasons
        .iter()
        .map(|(why, names)| format!("{}: {why}", names.join(", ")));
    Some(reasons.collect::<Vec<_>>().join("; ")).filter(|reasons| !reasons.is_empty())
}

pub(super) async fn filled(place: &Place, client: Client) -> Result<StreamFacts, String> {
    let handle = handle(place, client.clone()).await?;
    Ok(facts(handle.cached_info(), &client))
}

async fn handle(place: &Place, client: Client) -> Result<Handle, String> {
    let context = jetstream::new(client);
    let handle = context.get_stream(&place.outbox.section.stream.name).await;
    handle.map_err(|error| describe(&error))
}

pub(super) fn facts(info: &Info, client: &Client) -> StreamFacts {
    let (config, server) = (&info.config, client.server_info());
    let limit = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    let message_bytes = usize::try_from(config.max_message_size)
        .ok()
        .filter(|bytes| *bytes > 0)
        .map_or(server.max_payload, |bytes| bytes.min(server.max_payload));
    StreamFacts {
        name: config.name.clone(),
        keeps_what_was_read: config.retention == RetentionPolicy::Limits,
        duplicate_window: config.duplicate_window,
        max_age: Some(config.max_age).filter(|age| !age.is_zero()),
        max_bytes: limit(config.max_bytes),
        max_messages: limit(config.max_messages),
        messages: info.state.messages,
        bytes: info.state.bytes,
        drops_oldest: config.discard == DiscardPolicy::Old,
        max_messages_per_subject: limit(config.max_messages_per_subject),
        refuses_per_subject: config.discard_new_per_subject,
        is_in_memory: config.storage == StorageType::Memory,
        replicas: config.num_replicas,
        is_clustered: info
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.name.is_some()),
        message_bytes,
        is_supported: client.is_server_compatible(2, 9, 0),
        version: server.version,
    }
}

//! Reads a stream and its consumers from NATS and the inbox tables.

use std::collections::BTreeSet;
use std::time::Duration;

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
use outbox_admin::ConsumerRow;
use outbox_admin::doctor::StreamFacts;
use tokio::time::Instant;

use super::place::Place;
use crate::failure::CommandError;

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

const WATCH_EVERY: Duration = Duration::from_millis(500);
const WATCHED_FOR: Duration = Duration::from_secs(3);
pub(super) const WATCHED_MAX: Duration = Duration::from_millis(3_500);

/// Consumers of the stream and paused consumers. Without inbox tables, returns the reason why dead
/// letters and pauses are unknown.
pub(super) async fn rows(
    place: &Place,
    client: Client,
) -> Result<(Vec<ConsumerRow>, Option<String>), CommandError> {
    let consumers = consumers_of(place, client.clone())?;
    let names = names_on_stream(place, client).await?;
    look(place, &consumers, names).await
}

async fn look(
    place: &Place,
    consumers: &Consumers<JetStreamSubscriber>,
    names: BTreeSet<String>,
) -> Result<(Vec<ConsumerRow>, Option<String>), CommandError> {
    match tokio::time::timeout(place.timeout, outbox_admin::consumers(consumers, names.clone())).await {
        Ok(Err(ConsumersError::Database(error))) => {
            let looked = place.ask(outbox_admin::consumers_on_stream(consumers, names));
            let (mut rows, unseen) = (looked.await?, place.explain(&error));
            for row in &mut rows {
                row.unseen = Some(unseen.clone());
            }
            Ok((rows, Some(unseen)))
        }
        Ok(rows) => Ok((place.ask(std::future::ready(rows)).await?, None)),
        Err(_) => Err(CommandError::failed(format!(
            "no answer within {:?}",
            place.timeout
        ))),
    }
}

pub(super) fn unseen(rows: &[ConsumerRow]) -> Option<String> {
    let unseen = rows.iter().filter_map(|row| {
        let why = row.unseen.as_ref()?;
        Some(format!("{}: {why}", row.consumer))
    });
    let unseen: Vec<String> = unseen.collect();
    (!unseen.is_empty()).then(|| unseen.join("; "))
}

/// As [`rows`], but observes doubtful consumers again for up to [`WATCHED_MAX`].
pub(super) async fn watched(
    place: &Place,
    client: Client,
) -> Result<(Vec<ConsumerRow>, Option<String>), CommandError> {
    let consumers = consumers_of(place, client.clone())?;
    let names = names_on_stream(place, client).await?;
    let (mut rows, unseen) = look(place, &consumers, names).await?;
    watch(&consumers, &mut rows).await;
    Ok((rows, unseen))
}

/// Observes doubtful consumers again, for at most [`WATCHED_MAX`]. An error keeps earlier
/// observations.
pub(super) async fn watch(consumers: &Consumers<JetStreamSubscriber>, rows: &mut [ConsumerRow]) {
    let begun = Instant::now();
    let watching = async {
        while begun.elapsed() < WATCHED_FOR && rows.iter().any(ConsumerRow::is_doubtful) {
            tokio::time::sleep(WATCH_EVERY).await;
            for row in rows.iter_mut().filter(|row| row.is_doubtful()) {
                let Ok(standing) = consumers.standing(&row.consumer).await else {
                    return;
                };
                if let Some(standing) = standing {
                    row.look_again(&standing, begun.elapsed());
                }
            }
        }
    };
    let _ = tokio::time::timeout(WATCHED_MAX, watching).await;
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

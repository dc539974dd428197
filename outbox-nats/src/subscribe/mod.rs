//! Opens subscriptions of durable consumers on a JetStream stream.
//!
//! Invariant: an open subscription can receive every requested message. A missing stream, an event
//! that the stream does not capture, and a filter that an old server ignored are errors.

pub(crate) mod backlog;
pub(crate) mod consumer;
pub(crate) mod failure;
pub(crate) mod filters;
pub(crate) mod interest;
pub(crate) mod loss;
pub(crate) mod predecessors;
pub(crate) mod pull;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod subscription;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::client::FlushErrorKind;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    Context, ContextBuilder, GetStreamError, GetStreamErrorKind, RequestErrorKind,
};
use async_nats::jetstream::stream::{Info, RetentionPolicy, Stream};
use futures_util::FutureExt as _;
use outbox_core::{
    ConsumerSpec, ConsumerStanding, EventDescriptor, Message, StartAt, StreamFacts, StreamPolicy, Subscriber,
    SubscriberError,
};

use self::backlog::MayRead;
use self::consumer::Durable;
use crate::publish::outcome::is_temporary;
use crate::stream::EventStream;
use crate::stream::listing;
use crate::stream::provision::REQUEST_TIMEOUT;
use crate::stream::subject::{captures, is_plain_name};
use crate::subscribe::failure::{configuration, interrupted, misfit};
use crate::subscribe::interest::cache::Oracle;
use crate::subscribe::pull::connects;
use crate::subscribe::subscription::JetStreamSubscription;

/// The [`Subscriber`] for JetStream: durable pull consumers with explicit acknowledgement.
///
/// **A new consumer** starts as its request specifies ([`StartAt`](outbox_core::StartAt)). An
/// existing consumer keeps its position; if the existing consumer had another start, a warning is
/// logged. A deleted consumer is recreated at the next subscription, and starts like a new
/// consumer. The server redelivers without limit; the inbox counts attempts and stores dead
/// letters.
///
/// **An existing consumer** gets the requested `ack_wait`, in-flight bound and missing filters.
/// Filters are never narrowed, for rolling upgrades. The consumer's description lists every event
/// type that was ever requested, up to 4 KiB of names, about 150 event types. With a longer list,
/// every message without a handler counts as requested and is redelivered, and a warning is logged.
/// Then use several consumer names, or `UnknownEvent::Skip` of the inbox. To stop receiving an
/// event type, remove the event type from the description and the filters, with `nats consumer
/// edit`.
///
/// **A new event type** of an existing consumer is received from the current position; for older
/// messages, use a new consumer name. Adding an event type takes 1.5 s, until the other processes
/// have read the description. Subscribing takes 1.5 s too if filters do not separate event types (a
/// server before 2.10, whole aggregates).
#[derive(Debug, Clone)]
pub struct JetStreamSubscriber {
    client: Client,
    context: Context,
    stream: EventStream,
    /// If a server is silent for twice this time, but at least 4 s, the subscription is rebuilt up
    /// to 1.5 s later.
    idle_heartbeat: Duration,
    /// The name of this service in the metadata of its consumers. If two services use one consumer
    /// name, they share its messages, and a warning is logged.
    service: String,
    may_read: Arc<MayRead>,
}

/// Whether the client's connection task has ended. A reconnecting client still has a running task.
pub(crate) fn has_ended(client: &Client) -> bool {
    // Without a connection task, `flush` fails at once. With a connection task, an unfinished
    // `flush` has no effect.
    let flushed = client.flush().now_or_never();
    matches!(flushed, Some(Err(error)) if error.kind() == FlushErrorKind::SendError)
}

impl JetStreamSubscriber {
    pub(crate) fn new(stream: EventStream, client: Client) -> Self {
        let context = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .build(client.clone());
        Self {
            client,
            context,
            stream,
            idle_heartbeat: Duration::from_secs(5),
            service: service::of_program(),
            may_read: Arc::default(),
        }
    }

    outbox_core::__setters! {
        #[doc(hidden)]
        idle_heartbeat: Duration,
        #[doc(hidden)]
        service: impl Into<String>,
    }

    pub(crate) async fn read_stream(&self) -> Result<Stream, SubscriberError> {
        let name = &self.stream.name;
        let answer = self.context.get_stream(name).await;
        let has_ended = answer.is_err() && has_ended(&self.client);
        answer
            .map_err(|error| match error.kind() {
                _ if has_ended => configuration(
                    "the nats client has ended: its Tokio runtime has ended, the client was drained, or its reconnections are exhausted; create one client in each runtime, inside the runtime that uses it",
                    error,
                ),
                GetStreamErrorKind::JetStream(refused)
                    if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    let context = format!(
                        "stream `{name}` does not exist; call `EventStream::provision` first, or run: {}",
                        self.stream.add_command()
                    );
                    misfit(context)
                }
                GetStreamErrorKind::Request if has_no_responders(&error) => interrupted(
                    format!(
                        "no answer about stream `{name}`: JetStream is not enabled; start nats-server with `-js`, or enable it for the account (`jetstream: enabled`)"
                    ),
                    error,
                ),
                GetStreamErrorKind::Request => interrupted(format!("no answer about stream `{name}`"), error),
                GetStreamErrorKind::JetStream(refused)
                    if matches!(
                        refused.error_code(),
                        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                    ) =>
                {
                    configuration(
                        "JetStream is not enabled; start nats-server with `-js`, or enable it for the account (`jetstream: enabled`)",
                        error,
                    )
                }
                GetStreamErrorKind::JetStream(refused) if is_temporary(&refused) => {
                    interrupted(format!("stream `{name}` cannot be read now"), error)
                }
                _ => configuration(format!("stream `{name}` cannot be read"), error),
            })
    }

    async fn stream_for(&self, consumer: &ConsumerSpec) -> Result<Stream, SubscriberError> {
        let name = &self.stream.name;
        let stream = self.read_stream().await?;
        let config = &stream.cached_info().config;
        if config.retention != RetentionPolicy::Limits {
            let context = format!(
                "stream `{name}` has retention {:?}, which deletes published ids, and messages that other consumers have not read; it must be Limits",
                config.retention
            );
            return Err(misfit(context));
        }
        for (event, filter) in self.filters(consumer) {
            if !event.is_everything() && !captures(&config.subjects, &filter) {
                let why = match consumer.siblings.contains(&event) {
                    true => {
                        " (strategy `sequence` counts this event; an event on another stream must be `unsequenced`)"
                    }
                    false => "",
                };
                let context = format!(
                    "event `{}` of consumer `{}` never arrives: stream `{name}` ({}) does not capture subject `{filter}`; add it to the stream{why}",
                    event.event_type(),
                    consumer.name,
                    config.subjects.join(", ")
                );
                return Err(misfit(context));
            }
        }
        Ok(stream)
    }

    fn filters(&self, consumer: &ConsumerSpec) -> Vec<(&'static EventDescriptor, String)> {
        let events = consumer.events.iter().chain(&consumer.siblings);
        events
            .flat_map(|event| {
                let filters = self.stream.filters(event, consumer.whole_aggregates);
                filters.map(move |filter| (*event, filter))
            })
            .collect()
    }
}

impl Subscriber for JetStreamSubscriber {
    type Subscription = JetStreamSubscription;

    /// Concurrent `subscribe` calls from many processes are safe. Each call sends a few requests of
    /// at most 5 s each. A cancelled call leaves at most a consumer, which the next call uses.
    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<JetStreamSubscription, SubscriberError> {
        check(consumer)?;
        // Connections are counted before the first delivery: after a later connection,
        // unacknowledged messages must be checked.
        let connects = connects(&self.client);
        let stream = self.stream_for(consumer).await?;
        let events = consumer.events.iter().chain(&consumer.siblings).copied();
        let durable = Durable {
            stream,
            spec: consumer.clone(),
            filters: self.stream.consumer_filters(events, consumer.whole_aggregates),
            prefix: self.stream.prefix.clone(),
            has_shards: self.stream.shards.is_some(),
            // The server's version is known only after the first answer.
            many_filters: self.client.is_server_compatible(2, 10, 0),
            service: self.service.clone(),
        };
        let consumer_handle = durable.ensure().await?;
        tracing::info!(stream = self.stream.name, consumer = consumer.name, "subscribed");
        let info = consumer_handle.cached_info();
        let started_at = consumer::started_at(info);
        let oracle = Oracle::new(durable, started_at);
        let (client, context) = (self.client.clone(), self.context.clone());
        let subscription = JetStreamSubscription::new(client, context, consumer_handle, oracle, connects);
        Ok(subscription.pulling(consumer.prefetch, self.idle_heartbeat))
    }

    /// Sends one request of at most 5 s.
    async fn facts(&self) -> Result<StreamFacts, SubscriberError> {
        let stream = self.read_stream().await?;
        let Info { config, state, .. } = stream.cached_info();
        Ok(StreamFacts {
            retention: (!config.max_age.is_zero()).then_some(config.max_age),
            policy: match config.retention {
                RetentionPolicy::Limits => StreamPolicy::Limits,
                RetentionPolicy::Interest => StreamPolicy::Interest,
                RetentionPolicy::WorkQueue => StreamPolicy::WorkQueue,
            },
            duplicate_window: Some(config.duplicate_window),
            // For an empty stream, the server returns the sequence of the next message as the first
            // sequence.
            first_stream_sequence: (state.messages > 0).then_some(state.first_sequence),
            last_stream_sequence: state.last_sequence,
            messages: state.messages,
        })
    }

    /// Sends two requests of at most 5 s each and, for each filter, one request of at most 1 s, all
    /// at once. The age of the oldest message is missing on servers before 2.10, and without the
    /// permission `$JS.API.STREAM.MSG.GET.<stream>`.
    async fn standing(&self, consumer: &str) -> Result<Option<ConsumerStanding>, SubscriberError> {
        let stream = self.read_stream().await?;
        let says_oldest = self.client.is_server_compatible(2, 10, 0);
        backlog::standing(&stream, consumer, says_oldest, &self.may_read).await
    }

    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool {
        let prefix = &self.stream.prefix;
        prefix.is_default(message, subject)
            || match fixed {
                Some(fixed) => fixed.contains(&subject),
                None => !prefix.is_of_others(message, subject),
            }
    }
}

fn has_no_responders(error: &GetStreamError) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(request) = cause.downcast_ref::<async_nats::jetstream::context::RequestError>() {
            return request.kind() == RequestErrorKind::NoResponders;
        }
        source = cause.source();
    }
    false
}

fn check(consumer: &ConsumerSpec) -> Result<(), SubscriberError> {
    let reason = if !is_plain_name(&consumer.name) || consumer.name.len() > consumer::NAME_BYTES_MAX {
        "the name must be 1 to 64 characters of `[A-Za-z0-9_-]`"
    } else if consumer.events.is_empty() {
        "no event is requested; register at least one handler"
    } else if matches!(consumer.start_at, StartAt::Time(time) if listing::since(time).is_none()) {
        "`start_at` must be in the years 0 to 9999"
    } else if consumer.ack_wait.is_zero() {
        "`ack_wait` must be above zero"
    } else if consumer.in_flight_max == 0 {
        "`in_flight_max` must be above zero"
    } else if consumer.prefetch == 0 {
        "`prefetch` must be above zero"
    } else {
        return Ok(());
    };
    let context = format!(
        "consumer `{}` cannot be set up: {reason}",
        consumer.name.escape_debug()
    );
    Err(misfit(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLACED: EventDescriptor = EventDescriptor {
        aggregate: "order",
        name: "placed",
        version: 1,
        subject: None,
        sequenced: true,
        rust_type: "Test",
        file: file!(),
        line: line!(),
    };

    fn spec() -> ConsumerSpec {
        ConsumerSpec {
            name: "billing".to_owned(),
            events: vec![&PLACED],
            ack_wait: Duration::from_secs(1),
            whole_aggregates: false,
            siblings: Vec::new(),
            in_flight_max: 1,
            prefetch: 1,
            start_at: outbox_core::StartAt::Beginning,
        }
    }

    #[test]
    fn impossible_specs_are_refused_before_anything_is_sent() {
        check(&spec()).unwrap();
        for wrong in [
            ConsumerSpec {
                name: String::new(),
                ..spec()
            },
            ConsumerSpec {
                name: "a.b".to_owned(),
                ..spec()
            },
            ConsumerSpec {
                name: "x".repeat(65),
                ..spec()
            },
            ConsumerSpec {
                events: Vec::new(),
                ..spec()
            },
            ConsumerSpec {
                ack_wait: Duration::ZERO,
                ..spec()
            },
            ConsumerSpec {
                in_flight_max: 0,
                ..spec()
            },
        ] {
            assert!(
                matches!(check(&wrong), Err(SubscriberError::Configuration { .. })),
                "{wrong:?}"
            );
        }
    }
}

//! Durable consumers as operators move them.
//!
//! Invariant: a consumer that is placed anew is never the only holder of its configuration while it is away. JetStream cannot change where a consumer starts, so it
//! is removed and made anew; a spare consumer holds what it asks for meanwhile, and a repeated call goes on from it. Not here: what subscriptions change, see
//! `consumer`.

use std::time::Duration;

use async_nats::jetstream::consumer::{
    self, AckPolicy, DeliverPolicy, FromConsumer as _, PullConsumer, pull,
};
use async_nats::jetstream::stream::Stream;
use outbox_core::{ConsumerAdmin, Foreseen, StartAt, SubscriberError};

use crate::stream::listing;
use crate::subscribe::JetStreamSubscriber;
use crate::subscribe::backlog::info;
use crate::subscribe::failure::{configuration, misfit, not_changed};

/// End of the name of the consumer that holds a configuration.
const SPARE: &str = "-is-placed-anew";

/// Time after which the server removes a consumer that only counted.
const ABANDONED: Duration = Duration::from_secs(10);

/// The configuration of a consumer; `None` if there is none.
async fn config(stream: &Stream, name: &str) -> Result<Option<pull::Config>, SubscriberError> {
    let Some(info) = info(stream, name).await? else {
        return Ok(None);
    };
    pull(name, info.config).map(Some)
}

fn pull(name: &str, config: consumer::Config) -> Result<pull::Config, SubscriberError> {
    pull::Config::try_from_consumer_config(config).map_err(|error| {
        configuration(
            format!("consumer `{name}` is no pull consumer of an inbox"),
            error,
        )
    })
}

fn missing(name: &str) -> SubscriberError {
    misfit(format!("consumer `{name}` does not exist"))
}

fn spare_of(name: &str) -> String {
    format!("{name}{SPARE}")
}

async fn make(
    stream: &Stream,
    name: &str,
    asks: &pull::Config,
    deliver_policy: DeliverPolicy,
) -> Result<PullConsumer, SubscriberError> {
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        name: Some(name.to_owned()),
        deliver_policy,
        ..asks.clone()
    };
    create(stream, name, config).await
}

async fn create(stream: &Stream, name: &str, config: pull::Config) -> Result<PullConsumer, SubscriberError> {
    let made = stream.create_consumer(config).await;
    made.map_err(|error| not_changed(name, error))
}

async fn delete(stream: &Stream, name: &str) -> Result<(), SubscriberError> {
    if info(stream, name).await?.is_none() {
        return Ok(());
    }
    let deleted = stream.delete_consumer(name).await;
    deleted.map(drop).map_err(|error| not_changed(name, error))
}

fn from(stream_sequence: u64) -> DeliverPolicy {
    DeliverPolicy::ByStartSequence {
        start_sequence: stream_sequence.max(1),
    }
}

/// Needs the permissions of a consumer that creates its durable, for its name and the name followed by `-is-placed-anew`, and
/// `$JS.API.CONSUMER.DELETE.<stream>.<name>` for both. Each request takes at most 5 s.
impl ConsumerAdmin for JetStreamSubscriber {
    /// Makes a consumer without a name for the count, which the server removes by itself if this process dies.
    async fn foresee(&self, consumer: &str, start_at: StartAt) -> Result<Foreseen, SubscriberError> {
        let stream = self.read_stream().await?;
        let Some(asks) = config(&stream, consumer).await? else {
            return Err(missing(consumer));
        };
        let next = stream.cached_info().state.last_sequence + 1;
        let deliver_policy = match start_at {
            StartAt::New => from(next),
            StartAt::Time(time) => {
                listing::since(time).ok_or_else(|| misfit("the time must be in the years 0 to 9999"))?
            }
            _ => from(stream.cached_info().state.first_sequence),
        };
        let counting = pull::Config {
            deliver_policy,
            ack_policy: AckPolicy::None,
            filter_subject: asks.filter_subject.clone(),
            filter_subjects: asks.filter_subjects.clone(),
            inactive_threshold: ABANDONED,
            memory_storage: true,
            ..pull::Config::default()
        };
        let counting = create(&stream, consumer, counting).await?;
        let info = counting.cached_info();
        let foreseen = Foreseen {
            // It has been delivered nothing, so this is the place before its first message.
            stream_sequence: match start_at {
                StartAt::New => next,
                _ => info.delivered.stream_sequence + 1,
            },
            messages: info.num_pending,
        };
        // If this fails, the server removes it a little later.
        let _ = stream.delete_consumer(&info.name).await;
        Ok(foreseen)
    }

    /// Removes the consumer and makes it anew. A spare consumer holds what it asks for meanwhile. After a crash or an error: call it again.
    async fn place(&self, consumer: &str, stream_sequence: u64) -> Result<(), SubscriberError> {
        let stream = self.read_stream().await?;
        let spare = spare_of(consumer);
        // Of an attempt that was interrupted, the spare may be all that is left.
        let asks = match config(&stream, consumer).await? {
            Some(asks) => asks,
            None => match config(&stream, &spare).await? {
                Some(asks) => asks,
                None => return Err(missing(consumer)),
            },
        };
        if config(&stream, &spare).await?.is_none() {
            // A crash behind this line leaves a spare consumer that receives nothing.
            make(&stream, &spare, &asks, from(stream_sequence)).await?;
        }
        delete(&stream, consumer).await?;
        // A crash behind this line leaves the spare, and no consumer.
        make(&stream, consumer, &asks, from(stream_sequence)).await?;
        tracing::info!(consumer, stream_sequence, "consumer is placed anew");
        delete(&stream, &spare).await
    }
}

//! Creates the durable consumer, or updates an existing one.
//!
//! Invariants: filters and the list of requested event types (`asked`) only grow, and the list
//! grows first. The returned configuration is checked, because servers ignore unknown settings: 2.9
//! accepts several filters and delivers all messages.
//!
//! A late write can undo changes of other processes, so a writer reads its change back, and each
//! subscription periodically restores its filters and list entries (`interest::cache`).

use std::time::Duration;

use async_nats::jetstream::consumer::{
    self, AckPolicy, DeliverPolicy, FromConsumer as _, PullConsumer, ReplayPolicy, pull,
};
use async_nats::jetstream::stream::Stream;
use outbox_core::{ConsumerSpec, StartAt, SubscriberError};
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::stream::listing;
use crate::stream::subject::{SubjectPrefix, captures, without_covered};
use crate::subscribe::backlog::info;
use crate::subscribe::failure::{configuration, interrupted, misfit, not_changed};
use crate::subscribe::filters::{filters_of_pull, with_filters};
use crate::subscribe::interest::{self, Asked};
use crate::subscribe::service;
use crate::subscribe::settings;

pub(crate) const NAME_BYTES_MAX: usize = 64;

const ROUNDS: usize = 8;

/// Pause before a change is read back. Other processes read shortly before they write, so an
/// overwriting write is visible by then.
const OVERWRITTEN_AFTER: Duration = Duration::from_millis(100);

pub(crate) struct Durable {
    pub(crate) stream: Stream,
    pub(crate) spec: ConsumerSpec,
    pub(crate) filters: Vec<String>,
    pub(crate) prefix: SubjectPrefix,
    pub(crate) has_shards: bool,
    pub(crate) many_filters: bool,
    pub(crate) service: String,
}

impl Durable {
    fn is_claimed(&self, seen: &pull::Config) -> bool {
        let is_named = !self.service.is_empty() && self.many_filters;
        is_named && service::is_new(&self.spec.name, seen, &self.service)
    }

    /// Creates or updates the consumer, and reads each change back.
    pub(crate) async fn ensure(&self) -> Result<PullConsumer, SubscriberError> {
        let name = &self.spec.name;
        let (mut is_fitted, mut has_settled) = (false, false);
        for _ in 0..ROUNDS {
            let Some(seen) = self.read().await? else {
                let config = self.fitted(self.created(), self.filters.clone());
                tracing::info!(consumer = name, start = ?config.deliver_policy, "consumer is created");
                self.store(config).await?;
                (is_fitted, has_settled) = (true, true);
                sleep(OVERWRITTEN_AFTER).await;
                continue;
            };
            let seen = self.check_fixed(seen)?;
            let (asks, lacks) = (self.asks(&seen), self.lacks(&seen));
            let is_unfit =
                !is_fitted && (self.is_claimed(&seen) || settings::fitted(seen.clone(), &self.spec) != seen);
            if !asks && !has_settled && !self.is_filtered_exactly(&seen) {
                // Another process may have just written the list of requested event types.
                sleep(interest::SETTLES).await;
                has_settled = true;
                continue;
            }
            if !(asks || lacks || is_unfit) {
                self.warn_of_everything(&seen);
                let replicas = self.stream.cached_info().config.num_replicas;
                let now = OffsetDateTime::now_utc();
                for warning in settings::warnings(&seen, &self.spec, replicas, now) {
                    tracing::warn!(consumer = name, "{warning}");
                }
                return self.get().await;
            }
            if is_fitted && lacks {
                // Another process created the consumer at the same time, with a narrower filter.
                self.was_narrowed();
            }
            if asks {
                // If the process crashes now, the list keeps an event type that may have no
                // handler.
                let description = Some(self.asked_in(&seen).describe(seen.description.as_deref()));
                self.create(pull::Config { description, ..seen }).await?;
                sleep(interest::SETTLES).await;
                has_settled = true;
                continue;
            }
            let config = self.fitted(seen.clone(), self.widened(&seen));
            tracing::info!(consumer = name, before = ?seen, after = ?config, "consumer is updated");
            self.store(config).await?;
            is_fitted = true;
            sleep(OVERWRITTEN_AFTER).await;
        }
        Err(SubscriberError::Interrupted {
            context: format!("other processes keep changing consumer `{name}`"),
            source: None,
        })
    }

    /// Restores filters and list entries of this process. Bounds stay unchanged, because other
    /// processes may need other values. A missing consumer is not created.
    pub(crate) async fn restore(&self, seen: consumer::Config) -> Result<(), SubscriberError> {
        let seen = self.check_fixed(seen)?;
        let (asks, lacks) = (self.asks(&seen), self.lacks(&seen));
        if !(asks || lacks) {
            return Ok(());
        }
        let name = &self.spec.name;
        let config = pull::Config {
            description: Some(self.asked_in(&seen).describe(seen.description.as_deref())),
            ..with_filters(
                seen.clone(),
                self.widened(&seen),
                self.many_filters,
                self.stream_subjects(),
            )
        };
        tracing::warn!(
            consumer = name, before = ?seen, after = ?config,
            "another program has changed this consumer; restoring filters and description"
        );
        // Until this process has restored its entry, other processes must not treat it as removed
        // (`interest::HEALS`).
        self.store(config).await?;
        if lacks {
            self.was_narrowed();
        }
        Ok(())
    }

    pub(crate) async fn read(&self) -> Result<Option<consumer::Config>, SubscriberError> {
        let info = info(&self.stream, &self.spec.name).await?;
        Ok(info.map(|info| info.config))
    }

    fn asked_so_far(seen: &pull::Config) -> Asked {
        Asked::of(seen.description.as_deref(), filters_of_pull(seen))
    }

    fn asked_in(&self, seen: &pull::Config) -> Asked {
        let types = self.spec.events.iter().map(|event| event.event_type());
        Self::asked_so_far(seen).with(types)
    }

    fn asks(&self, seen: &pull::Config) -> bool {
        let asked = Self::asked_so_far(seen);
        let mut events = self.spec.events.iter();
        events.any(|event| !asked.names(&event.event_type(), &self.prefix.filter(event)))
    }

    fn warn_of_everything(&self, seen: &pull::Config) {
        if Self::asked_so_far(seen).is_everything() {
            tracing::warn!(
                consumer = self.spec.name,
                "the list of requested event types exceeds {} bytes, so every message without a handler counts as requested and is redelivered without end; use several consumer names, or set UnknownEvent::Skip",
                interest::DESCRIPTION_BYTES_MAX
            );
        }
    }

    fn created(&self) -> pull::Config {
        pull::Config {
            durable_name: Some(self.spec.name.clone()),
            description: Some(self.asked_in(&pull::Config::default()).describe(None)),
            deliver_policy: self.start(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.spec.ack_wait,
            ..pull::Config::default()
        }
    }

    fn start(&self) -> DeliverPolicy {
        match self.spec.start_at {
            StartAt::New => DeliverPolicy::ByStartSequence {
                start_sequence: self.stream.cached_info().state.last_sequence + 1,
            },
            StartAt::Time(time) => listing::since(time).unwrap_or(DeliverPolicy::All),
            _ => DeliverPolicy::All,
        }
    }

    fn check_fixed(&self, seen: consumer::Config) -> Result<pull::Config, SubscriberError> {
        let name = &self.spec.name;
        if seen.ack_policy != AckPolicy::Explicit {
            let context = format!(
                "consumer `{name}` has acknowledgement policy {:?}; it must be Explicit and cannot be changed; use another consumer name, or delete the consumer with its progress",
                seen.ack_policy
            );
            return Err(misfit(context));
        }
        if seen.replay_policy == ReplayPolicy::Original {
            let context = format!(
                "consumer `{name}` has replay policy Original, so it receives messages no faster than they were published and never catches up; it must be Instant and cannot be changed; use another consumer name, or delete the consumer with its progress"
            );
            return Err(misfit(context));
        }
        pull::Config::try_from_consumer_config(seen).map_err(|error| {
            let context = format!(
                "consumer `{name}` is a push consumer; it must be a pull consumer and cannot be changed; use another consumer name"
            );
            configuration(context, error)
        })
    }

    fn lacks(&self, seen: &pull::Config) -> bool {
        let filters = filters_of_pull(seen);
        self.filters.iter().any(|wanted| !captures(&filters, wanted))
    }

    fn was_narrowed(&self) {
        tracing::error!(
            consumer = self.spec.name,
            "the consumer's filter was too narrow for a moment, so messages published in that time may have been skipped; compare with the stream, and handle older messages with a new consumer name (operations.md, Versions)"
        );
    }

    fn widened(&self, seen: &pull::Config) -> Vec<String> {
        let filters = filters_of_pull(seen).into_iter();
        without_covered(filters.chain(self.filters.iter().cloned()))
    }

    /// Whether each requested event type has its own filter. The process that wrote the filter had
    /// waited for [`interest::SETTLES`].
    fn is_filtered_exactly(&self, seen: &pull::Config) -> bool {
        let filters = filters_of_pull(seen);
        let mut events = self.spec.events.iter();
        // A filter for a whole aggregate type may exist for counting only.
        events.all(|event| !event.is_selection() && filters.contains(&self.prefix.filter(event)))
    }

    fn fitted(&self, base: pull::Config, filters: Vec<String>) -> pull::Config {
        let mut config = settings::fitted(base, &self.spec);
        if self.many_filters && !self.service.is_empty() {
            config.metadata = service::named(config.metadata, &self.service);
        }
        with_filters(config, filters, self.many_filters, self.stream_subjects())
    }

    async fn store(&self, config: pull::Config) -> Result<(), SubscriberError> {
        let name = &self.spec.name;
        let asked = filters_of_pull(&config);
        let consumer = self.create(config).await?;
        let echoed = as_pull(&consumer);
        if filters_of_pull(&echoed) == asked {
            return Ok(());
        }
        // The server that stores the consumer may be older than the connected server.
        tracing::warn!(
            consumer = name,
            ?asked,
            "the server ignored several filters; using one wider filter"
        );
        let consumer = self
            .create(with_filters(echoed, asked, false, self.stream_subjects()))
            .await?;
        let echoed = filters_of_pull(&as_pull(&consumer));
        if let Some(lacking) = self.filters.iter().find(|wanted| !captures(&echoed, wanted)) {
            let kept = echoed.join(", ");
            let context =
                format!("consumer `{name}` would not receive `{lacking}`: the server keeps filter {kept}");
            return Err(misfit(context));
        }
        Ok(())
    }

    async fn create(&self, config: pull::Config) -> Result<PullConsumer, SubscriberError> {
        let made = self.stream.create_consumer(config).await;
        made.map_err(|error| not_changed(&self.spec.name, error))
    }

    async fn get(&self) -> Result<PullConsumer, SubscriberError> {
        let name = &self.spec.name;
        self.stream
            .get_consumer(name)
            .await
            .map_err(|error| interrupted(format!("consumer `{name}` cannot be opened"), error))
    }

    fn stream_subjects(&self) -> &[String] {
        &self.stream.cached_info().config.subjects
    }
}

/// The consumer's start. A start time after the consumer's creation counts as the creation time.
pub(crate) fn started_at(info: &consumer::Info) -> DeliverPolicy {
    match info.config.deliver_policy {
        DeliverPolicy::ByStartTime { start_time } => DeliverPolicy::ByStartTime {
            start_time: start_time.min(info.created),
        },
        policy => policy,
    }
}

fn as_pull(consumer: &PullConsumer) -> pull::Config {
    pull::Config::try_from_consumer_config(consumer.cached_info().config.clone()).unwrap_or_default()
}

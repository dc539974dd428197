//! The durable consumer on the server: what it must be like, and how an existing one gets there.
//!
//! Invariants: filters and the list of what was asked for are only ever widened, the list before the filters; after an update the server's own account of the consumer is checked, because
//! servers silently ignore settings they do not know: 2.9 takes several filters and then delivers everything.
//!
//! A server takes whatever is written last. So a program whose write arrives late undoes what others have written since it read. Who has written reads again
//! after a moment, and every subscription has what it needs looked at and restored while it lasts (`oracle`). Absent here: the stream (`provision`) and receiving
//! (`subscription`).

use std::time::Duration;

use async_nats::jetstream::consumer::{
    self, AckPolicy, DeliverPolicy, FromConsumer as _, PullConsumer, pull,
};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use outbox_core::{ConsumerSpec, SubscriberError};
use tokio::time::sleep;

use crate::asked::{self, Asked};
use crate::failure::{configuration, interrupted};
use crate::filters::{filters_of_pull, with_filters};
use crate::outcome::is_temporary;
use crate::stream::Provisioning;
use crate::subject::{SubjectPrefix, captures, without_covered};

/// Longest name of a consumer, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Redelivered without end: after a limit the server would forget the message while its metrics look clean.
const UNLIMITED: i64 = -1;

/// Times that a consumer is read and written before somebody else has to be asked what goes on.
const ROUNDS: usize = 8;

/// Time after which what others have written over is seen. They read a moment before they write.
const OVERWRITTEN_AFTER: Duration = Duration::from_millis(100);

/// The consumer that is needed.
pub(crate) struct Durable {
    pub(crate) stream: Stream,
    pub(crate) spec: ConsumerSpec,
    /// Patterns of all wanted messages; none covers another.
    pub(crate) filters: Vec<String>,
    pub(crate) prefix: SubjectPrefix,
    pub(crate) provisioning: Provisioning,
    /// Whether the server knows more than one filter per consumer (2.10).
    pub(crate) many_filters: bool,
}

impl Durable {
    /// Creates, updates or checks the consumer.
    ///
    /// What is written is read again after a moment: another process that read before it and wrote after it has overwritten it.
    pub(crate) async fn ensure(&self) -> Result<PullConsumer, SubscriberError> {
        let name = &self.spec.name;
        let (mut is_fitted, mut has_settled) = (false, false);
        for _ in 0..ROUNDS {
            let Some(seen) = self.read().await? else {
                let config = self.fitted(self.created(), self.filters.clone());
                self.may_write(&config, &[])?;
                self.store(config).await?;
                (is_fitted, has_settled) = (true, true);
                sleep(OVERWRITTEN_AFTER).await;
                continue;
            };
            let seen = self.check_fixed(seen)?;
            let asks = self.asks(&seen);
            let changes: Vec<String> = asks
                .clone()
                .into_iter()
                .chain(self.lacks(&seen))
                // Others may want them otherwise, and have the last word.
                .chain((!is_fitted).then(|| self.changes(&seen)).into_iter().flatten())
                .collect();
            let filters = self.widened(&seen);
            if !changes.is_empty() {
                self.may_write(&self.fitted(seen.clone(), filters.clone()), &changes)?;
            }
            if asks.is_none() && !has_settled && !self.is_filtered_exactly(&seen) {
                // Another process may have written the list just now.
                sleep(asked::SETTLES).await;
                has_settled = true;
                continue;
            }
            if changes.is_empty() {
                self.warn_of_everything(&seen);
                return self.get().await;
            }
            for change in &changes {
                tracing::info!(consumer = name, "consumer is updated: {change}");
            }
            if is_fitted && self.lacks(&seen).is_some() {
                // Another program made the consumer at the same time.
                self.was_narrowed();
            }
            if asks.is_some() {
                // Nothing more is delivered than before, so a crash here leaves nothing but an event type that seems to be asked for.
                let description = Some(self.asked_in(&seen).describe(seen.description.as_deref()));
                self.create(pull::Config { description, ..seen }).await?;
                sleep(asked::SETTLES).await;
                has_settled = true;
                continue;
            }
            self.store(self.fitted(seen, filters)).await?;
            is_fitted = true;
            sleep(OVERWRITTEN_AFTER).await;
        }
        Err(SubscriberError::Interrupted {
            context: format!("consumer `{name}` is changed by others at the same time"),
            source: None,
        })
    }

    /// Writes what others have undone, if they have. Settings that others may want otherwise are left alone, and a consumer that is gone is not made.
    pub(crate) async fn restore(&self, seen: consumer::Config) -> Result<(), SubscriberError> {
        let seen = self.check_fixed(seen)?;
        let (asks, lacks) = (self.asks(&seen), self.lacks(&seen));
        let is_narrowed = lacks.is_some();
        let changes: Vec<String> = asks.into_iter().chain(lacks).collect();
        if changes.is_empty() {
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
        self.may_write(&config, &changes)?;
        let changes = changes.join("; ");
        tracing::warn!(
            consumer = name,
            "somebody has undone what this process wants, it is restored: {changes}"
        );
        // Both at once, so that the filter is narrow for as short as possible. No process says meanwhile that nobody has asked (`asked::HEALS`).
        self.store(config).await?;
        if is_narrowed {
            self.was_narrowed();
        }
        Ok(())
    }

    /// Reads the consumer; `None` if there is none.
    pub(crate) async fn read(&self) -> Result<Option<consumer::Config>, SubscriberError> {
        let name = &self.spec.name;
        let error = match self.stream.consumer_info(name).await {
            Ok(info) => return Ok(Some(info.config)),
            Err(error) => error,
        };
        Err(match error.kind() {
            ConsumerInfoErrorKind::NotFound => return Ok(None),
            ConsumerInfoErrorKind::JetStream(refused) if is_temporary(&refused) => {
                interrupted(format!("consumer `{name}` cannot be read now"), error)
            }
            ConsumerInfoErrorKind::JetStream(_) | ConsumerInfoErrorKind::StreamNotFound => {
                configuration(format!("consumer `{name}` cannot be read"), error)
            }
            _ => interrupted(format!("no answer about consumer `{name}`"), error),
        })
    }

    fn may_write(&self, config: &pull::Config, changes: &[String]) -> Result<(), SubscriberError> {
        if self.provisioning == Provisioning::VerifyOnly {
            return Err(self.not_allowed(config, changes));
        }
        Ok(())
    }

    /// What was asked for so far.
    fn asked_so_far(seen: &pull::Config) -> Asked {
        Asked::of(seen.description.as_deref(), filters_of_pull(seen))
    }

    /// What is asked for, with this consumer's event types.
    fn asked_in(&self, seen: &pull::Config) -> Asked {
        let types = self.spec.events.iter().map(|event| event.event_type());
        Self::asked_so_far(seen).with(types)
    }

    /// Which event types nobody has asked for yet.
    fn asks(&self, seen: &pull::Config) -> Option<String> {
        let asked = Self::asked_so_far(seen);
        let new: Vec<String> = self
            .spec
            .events
            .iter()
            .filter(|event| !asked.names(&event.event_type(), &self.prefix.filter(event)))
            .map(|event| event.event_type())
            .collect();
        (!new.is_empty()).then(|| {
            format!(
                "{} is asked for, the description must be \"{}\"",
                new.join(", "),
                self.asked_in(seen).describe(seen.description.as_deref())
            )
        })
    }

    fn warn_of_everything(&self, seen: &pull::Config) {
        if Self::asked_so_far(seen).is_everything() {
            tracing::warn!(
                consumer = self.spec.name,
                "more than {} event types were asked for, so that their list does not fit: every message without a handler counts as asked for and goes back \
                 for ever; use several consumer names, or set UnknownEvent::Skip",
                asked::CODES_MAX
            );
        }
    }

    /// A new consumer, before filters and bounds.
    fn created(&self) -> pull::Config {
        pull::Config {
            durable_name: Some(self.spec.name.clone()),
            description: Some(self.asked_in(&pull::Config::default()).describe(None)),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ..pull::Config::default()
        }
    }

    /// Refuses what the server cannot change.
    fn check_fixed(&self, seen: consumer::Config) -> Result<pull::Config, SubscriberError> {
        let name = &self.spec.name;
        if seen.ack_policy != AckPolicy::Explicit {
            let context = format!(
                "consumer `{name}` has acknowledgement policy {:?}, it must be Explicit, which cannot be changed; use another consumer name, or delete the consumer and with it its progress",
                seen.ack_policy
            );
            return Err(SubscriberError::Configuration {
                context,
                source: None,
            });
        }
        pull::Config::try_from_consumer_config(seen).map_err(|error| {
            let context = format!(
                "consumer `{name}` is a push consumer, it must be a pull consumer, which cannot be changed; use another consumer name"
            );
            configuration(context, error)
        })
    }

    /// Which filters an existing consumer lacks.
    fn lacks(&self, seen: &pull::Config) -> Option<String> {
        let filters = filters_of_pull(seen);
        let lacking = without_covered(
            self.filters
                .iter()
                .filter(|wanted| !captures(&filters, wanted))
                .cloned(),
        );
        (!lacking.is_empty()).then(|| {
            format!(
                "filter is {}, needed is also {}",
                filters.join(", "),
                lacking.join(", ")
            )
        })
    }

    /// Says that the filter did not have what it had before.
    fn was_narrowed(&self) {
        tracing::error!(
            consumer = self.spec.name,
            "the consumer's filter was too narrow for a moment: messages published in that time may have been passed over; compare with the stream, and handle older messages with a new consumer name (operations.md, Versions)"
        );
    }

    /// The filters of an existing consumer, and what they lack.
    fn widened(&self, seen: &pull::Config) -> Vec<String> {
        let filters = filters_of_pull(seen).into_iter();
        without_covered(filters.chain(self.filters.iter().cloned()))
    }

    /// Whether each event type has a filter of its own. Who wrote it has waited for [`asked::SETTLES`] before.
    fn is_filtered_exactly(&self, seen: &pull::Config) -> bool {
        let filters = filters_of_pull(seen);
        let mut events = self.spec.events.iter();
        events.all(|event| filters.contains(&self.prefix.filter(event)))
    }

    /// What else an existing consumer must have, each with the value seen and the value needed.
    fn changes(&self, seen: &pull::Config) -> Vec<String> {
        let mut changes = Vec::new();
        let mut need = |wrong: bool, setting: &str, seen: String, needed: String| {
            if wrong {
                changes.push(format!("{setting} is {seen}, needed is {needed}"));
            }
        };
        need(
            seen.ack_wait != self.spec.ack_wait,
            "ack_wait",
            format!("{:?}", seen.ack_wait),
            format!("{:?}", self.spec.ack_wait),
        );
        need(
            seen.max_deliver > 0,
            "max_deliver",
            seen.max_deliver.to_string(),
            UNLIMITED.to_string(),
        );
        need(
            seen.headers_only,
            "headers_only",
            "true".to_owned(),
            "false, payloads are read".to_owned(),
        );
        need(
            !seen.inactive_threshold.is_zero(),
            "inactive_threshold",
            format!("{:?}", seen.inactive_threshold),
            "none, or its progress is deleted while no process runs".to_owned(),
        );
        need(
            !seen.backoff.is_empty(),
            "backoff",
            format!("{:?}", seen.backoff),
            "none, it replaces ack_wait".to_owned(),
        );
        // An operator may share the bound among many processes, so without the right to change it, any value is taken.
        let bound = self.in_flight_max();
        need(
            self.provisioning == Provisioning::Create && seen.max_ack_pending != bound,
            "max_ack_pending",
            seen.max_ack_pending.to_string(),
            bound.to_string(),
        );
        changes
    }

    /// A configuration with everything we need; what else it says stays.
    fn fitted(&self, base: pull::Config, filters: Vec<String>) -> pull::Config {
        let config = pull::Config {
            ack_wait: self.spec.ack_wait,
            max_ack_pending: self.in_flight_max(),
            max_deliver: UNLIMITED,
            headers_only: false,
            inactive_threshold: Duration::ZERO,
            backoff: Vec::new(),
            ..base
        };
        with_filters(config, filters, self.many_filters, self.stream_subjects())
    }

    /// Writes the consumer and verifies what the server made of it.
    async fn store(&self, config: pull::Config) -> Result<(), SubscriberError> {
        let name = &self.spec.name;
        let asked = filters_of_pull(&config);
        let consumer = self.create(config).await?;
        let echoed = as_pull(&consumer);
        if filters_of_pull(&echoed) == asked {
            return Ok(());
        }
        // The server that keeps the consumer may be older than the one we are connected to: fall back to one filter.
        tracing::warn!(
            consumer = name,
            ?asked,
            "server ignored filters, one wider filter is used"
        );
        let consumer = self
            .create(with_filters(echoed, asked, false, self.stream_subjects()))
            .await?;
        let echoed = filters_of_pull(&as_pull(&consumer));
        if let Some(lacking) = self.filters.iter().find(|wanted| !captures(&echoed, wanted)) {
            let kept = echoed.join(", ");
            let context =
                format!("consumer `{name}` would not receive `{lacking}`: the server keeps filter {kept}");
            return Err(SubscriberError::Configuration {
                context,
                source: None,
            });
        }
        Ok(())
    }

    async fn create(&self, config: pull::Config) -> Result<PullConsumer, SubscriberError> {
        let name = &self.spec.name;
        self.stream
            .create_consumer(config)
            .await
            .map_err(|error| match error.kind() {
                ConsumerErrorKind::JetStream(refused) if is_temporary(&refused) => {
                    interrupted(format!("consumer `{name}` cannot be set up now"), error)
                }
                ConsumerErrorKind::JetStream(_)
                | ConsumerErrorKind::InvalidConsumerType
                | ConsumerErrorKind::InvalidName => {
                    configuration(format!("server refused consumer `{name}`"), error)
                }
                _ => interrupted(format!("no answer while setting up consumer `{name}`"), error),
            })
    }

    async fn get(&self) -> Result<PullConsumer, SubscriberError> {
        let name = &self.spec.name;
        self.stream
            .get_consumer(name)
            .await
            .map_err(|error| interrupted(format!("consumer `{name}` cannot be opened"), error))
    }

    /// What an operator must do when we may not.
    fn not_allowed(&self, config: &pull::Config, changes: &[String]) -> SubscriberError {
        let (name, stream) = (&self.spec.name, &self.stream.cached_info().config.name);
        let filters: Vec<String> = filters_of_pull(config)
            .iter()
            .map(|filter| format!(" --filter='{filter}'"))
            .collect();
        let settings = format!(
            "--wait={}ms --max-deliver=-1 --max-pending={}{} --description='{}'",
            config.ack_wait.as_millis(),
            config.max_ack_pending,
            filters.concat(),
            self.asked_in(config).describe(config.description.as_deref())
        );
        let context = if changes.is_empty() {
            format!(
                "consumer `{name}` does not exist; create it with: nats consumer add {stream} {name} --pull --ack=explicit --deliver=all {settings} --defaults"
            )
        } else {
            format!(
                "consumer `{name}` does not fit: {}; change it with: nats consumer edit {stream} {name} {settings}",
                changes.join("; ")
            )
        };
        SubscriberError::Configuration {
            context,
            source: None,
        }
    }

    fn stream_subjects(&self) -> &[String] {
        &self.stream.cached_info().config.subjects
    }

    fn in_flight_max(&self) -> i64 {
        i64::try_from(self.spec.in_flight_max).unwrap_or(i64::MAX)
    }
}

/// The server's account of a consumer, as the type that we write.
fn as_pull(consumer: &PullConsumer) -> pull::Config {
    // It was opened as a pull consumer, so this cannot fail; a default would show as a missing filter.
    pull::Config::try_from_consumer_config(consumer.cached_info().config.clone()).unwrap_or_default()
}

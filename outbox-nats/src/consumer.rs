//! The durable consumer on the server: what it must be like, and how an existing one gets there.
//!
//! Invariants: filters are only ever widened, and after an update the server's own account of the consumer is checked, because
//! servers silently ignore settings they do not know: 2.9 takes several filters and then delivers everything. Absent here: the stream
//! (`provision`) and receiving (`subscription`).

use std::time::Duration;

use async_nats::jetstream::consumer::{
    self, AckPolicy, DeliverPolicy, FromConsumer as _, PullConsumer, pull,
};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use outbox_core::{ConsumerSpec, SourceError};

use crate::outcome::is_temporary;
use crate::provision::{Provisioning, captures};
use crate::source::{configuration, interrupted};
use crate::subject::{covers, narrowest_cover, without_covered};

/// Longest name of a consumer, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Redelivered without end: after a limit the server would forget the message while its metrics look clean.
const UNLIMITED: i64 = -1;

/// The consumer that is needed.
pub(crate) struct Durable<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) spec: &'a ConsumerSpec,
    /// Patterns of all wanted messages; none covers another.
    pub(crate) filters: Vec<String>,
    pub(crate) provisioning: Provisioning,
    /// Whether the server knows more than one filter per consumer (2.10).
    pub(crate) many_filters: bool,
}

impl Durable<'_> {
    /// Creates, updates or checks the consumer.
    pub(crate) async fn ensure(&self) -> Result<PullConsumer, SourceError> {
        let name = &self.spec.name;
        let seen = match self.stream.consumer_info(name).await {
            Ok(info) => Some(info.config),
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => None,
                ConsumerInfoErrorKind::JetStream(refused) if is_temporary(&refused) => {
                    return Err(interrupted(
                        format!("consumer `{name}` cannot be read now"),
                        error,
                    ));
                }
                ConsumerInfoErrorKind::JetStream(_) | ConsumerInfoErrorKind::StreamNotFound => {
                    return Err(configuration(format!("consumer `{name}` cannot be read"), error));
                }
                _ => return Err(interrupted(format!("no answer about consumer `{name}`"), error)),
            },
        };
        let (config, changes) = match seen {
            None => (self.fitted(self.created(), self.filters.clone()), Vec::new()),
            Some(seen) => {
                let seen = self.check_fixed(seen)?;
                let changes = self.changes(&seen);
                if changes.is_empty() {
                    return self.get().await;
                }
                let filters =
                    without_covered(filters_of(&seen).into_iter().chain(self.filters.iter().cloned()));
                (self.fitted(seen, filters), changes)
            }
        };
        if self.provisioning == Provisioning::VerifyOnly {
            return Err(self.not_allowed(&config, &changes));
        }
        for change in &changes {
            tracing::info!(consumer = name, "consumer is updated: {change}");
        }
        self.store(config).await
    }

    /// A new consumer, before filters and bounds.
    fn created(&self) -> pull::Config {
        pull::Config {
            durable_name: Some(self.spec.name.clone()),
            description: Some("Reads events for an inbox.".to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ..pull::Config::default()
        }
    }

    /// Refuses what the server cannot change.
    fn check_fixed(&self, seen: consumer::Config) -> Result<pull::Config, SourceError> {
        let name = &self.spec.name;
        if seen.ack_policy != AckPolicy::Explicit {
            let context = format!(
                "consumer `{name}` has acknowledgement policy {:?}, it must be Explicit, which cannot be changed; use another consumer name, or delete the consumer and with it its position",
                seen.ack_policy
            );
            return Err(SourceError::Configuration {
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

    /// What an existing consumer lacks, each with the value seen and the value needed. Empty if it can be used as it is.
    fn changes(&self, seen: &pull::Config) -> Vec<String> {
        let mut changes = Vec::new();
        let mut need = |wrong: bool, setting: &str, seen: String, needed: String| {
            if wrong {
                changes.push(format!("{setting} is {seen}, needed is {needed}"));
            }
        };
        let lacking = without_covered(
            self.filters
                .iter()
                .filter(|wanted| !captures(&filters_of(seen), wanted))
                .cloned(),
        );
        need(
            !lacking.is_empty(),
            "filter",
            filters_of(seen).join(", "),
            format!("also {}", lacking.join(", ")),
        );
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
            "none, or the position is deleted while no process runs".to_owned(),
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
    async fn store(&self, config: pull::Config) -> Result<PullConsumer, SourceError> {
        let name = &self.spec.name;
        let asked = filters_of(&config);
        let consumer = self.create(config).await?;
        let echoed = as_pull(&consumer);
        if filters_of(&echoed) == asked {
            return Ok(consumer);
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
        let echoed = filters_of(&as_pull(&consumer));
        if let Some(lacking) = self.filters.iter().find(|wanted| !captures(&echoed, wanted)) {
            let kept = echoed.join(", ");
            let context =
                format!("consumer `{name}` would not receive `{lacking}`: the server keeps filter {kept}");
            return Err(SourceError::Configuration {
                context,
                source: None,
            });
        }
        Ok(consumer)
    }

    async fn create(&self, config: pull::Config) -> Result<PullConsumer, SourceError> {
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

    async fn get(&self) -> Result<PullConsumer, SourceError> {
        let name = &self.spec.name;
        self.stream
            .get_consumer(name)
            .await
            .map_err(|error| interrupted(format!("consumer `{name}` cannot be opened"), error))
    }

    /// What an operator must do when we may not.
    fn not_allowed(&self, config: &pull::Config, changes: &[String]) -> SourceError {
        let (name, stream) = (&self.spec.name, &self.stream.cached_info().config.name);
        let context = if changes.is_empty() {
            let filters: Vec<String> = filters_of(config)
                .iter()
                .map(|filter| format!(" --filter='{filter}'"))
                .collect();
            format!(
                "consumer `{name}` does not exist; create it with: nats consumer add {stream} {name} --pull --ack=explicit --deliver=all --wait={}ms --max-deliver=-1 --max-pending={}{} --defaults",
                self.spec.ack_wait.as_millis(),
                config.max_ack_pending,
                filters.concat()
            )
        } else {
            format!(
                "consumer `{name}` does not fit: {}; change it with: nats consumer edit {stream} {name}",
                changes.join("; ")
            )
        };
        SourceError::Configuration {
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

/// The filters of a consumer; without any it receives everything.
fn filters_of(config: &pull::Config) -> Vec<String> {
    if !config.filter_subjects.is_empty() {
        return without_covered(config.filter_subjects.iter().cloned());
    }
    vec![if config.filter_subject.is_empty() {
        ">".to_owned()
    } else {
        config.filter_subject.clone()
    }]
}

/// Sets filters in the way the server understands.
fn with_filters(
    config: pull::Config,
    filters: Vec<String>,
    many_filters: bool,
    stream_subjects: &[String],
) -> pull::Config {
    let everything = filters.iter().any(|filter| filter == ">");
    match filters.as_slice() {
        _ if everything => pull::Config {
            filter_subject: String::new(),
            filter_subjects: Vec::new(),
            ..config
        },
        [filter] => pull::Config {
            filter_subject: filter.clone(),
            filter_subjects: Vec::new(),
            ..config
        },
        _ if many_filters => pull::Config {
            filter_subject: String::new(),
            filter_subjects: filters,
            ..config
        },
        _ => {
            // Old servers refuse a filter that is not within one subject of the stream; then only everything is left.
            let cover = narrowest_cover(filters.iter().map(String::as_str))
                .filter(|cover| stream_subjects.iter().any(|subject| covers(subject, cover)))
                .unwrap_or_default();
            pull::Config {
                filter_subject: cover,
                filter_subjects: Vec::new(),
                ..config
            }
        }
    }
}

/// The server's account of a consumer, as the type that we write.
fn as_pull(consumer: &PullConsumer) -> pull::Config {
    // It was opened as a pull consumer, so this cannot fail; a default would show as a missing filter.
    pull::Config::try_from_consumer_config(consumer.cached_info().config.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(config: &pull::Config) -> (&str, Vec<&str>) {
        (
            &config.filter_subject,
            config.filter_subjects.iter().map(String::as_str).collect(),
        )
    }

    fn with(patterns: &[&str], many_filters: bool, stream_subjects: &[&str]) -> pull::Config {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        with_filters(
            pull::Config::default(),
            owned(patterns),
            many_filters,
            &owned(stream_subjects),
        )
    }

    #[test]
    fn filters_are_written_as_the_server_understands_them() {
        let two = ["events.order.*.placed", "events.order.*.shipped"];
        assert_eq!(
            filters(&with(&two[..1], true, &["events.>"])),
            ("events.order.*.placed", vec![])
        );
        assert_eq!(filters(&with(&two, true, &["events.>"])), ("", two.to_vec()));
        assert_eq!(
            filters(&with(&two, false, &["events.>"])),
            ("events.order.*.*", vec![])
        );
        assert_eq!(filters(&with(&[">"], true, &["events.>"])), ("", vec![]));
    }

    #[test]
    fn an_old_server_gets_no_filter_that_spans_subjects_of_the_stream() {
        let config = with(
            &["events.order.*.placed", "legacy.shipped"],
            false,
            &["events.>", "legacy.shipped"],
        );
        assert_eq!(filters(&config), ("", vec![]));
    }

    #[test]
    fn a_consumer_without_filter_receives_everything() {
        assert_eq!(filters_of(&pull::Config::default()), [">"]);
    }
}

//! Compares the settings of a durable with the required settings, without a server.
//!
//! Invariants: a setting that would drop, truncate or reject messages is changed. A setting that
//! cannot be changed, or that an operator may have chosen, causes a warning. `ack_wait` is never
//! lowered, because another version of the program may need a longer `ack_wait`.

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, PriorityPolicy, pull};
use outbox_core::{ConsumerSpec, StartAt};
use time::OffsetDateTime;

use crate::stream::listing;
use crate::subscribe::pull::EXPIRES;

/// No limit of deliveries. At a limit, the server drops the message without any sign in its
/// metrics.
const UNLIMITED: i64 = -1;

/// Required `max_waiting`. A process may have two open requests, so with a smaller bound, a few
/// processes block each other.
const WAITING_NEEDED: i64 = 64;

type Setting<'a> = (&'a str, &'a dyn fmt::Debug, &'a dyn fmt::Debug, Option<&'a str>);

pub(crate) fn changes(seen: &pull::Config, spec: &ConsumerSpec, bound: Option<i64>) -> Vec<String> {
    let needed = fitted(seen.clone(), spec, bound.unwrap_or(seen.max_ack_pending));
    let settings: [Setting<'_>; 9] = [
        ("ack_wait", &seen.ack_wait, &needed.ack_wait, None),
        ("max_deliver", &seen.max_deliver, &needed.max_deliver, None),
        (
            "headers_only",
            &seen.headers_only,
            &needed.headers_only,
            Some("false, payloads are read"),
        ),
        (
            "inactive_threshold",
            &seen.inactive_threshold,
            &needed.inactive_threshold,
            Some("none, or its progress is deleted while no process runs"),
        ),
        (
            "backoff",
            &seen.backoff,
            &needed.backoff,
            Some("none, because it replaces ack_wait"),
        ),
        (
            "max_request_batch",
            &seen.max_batch,
            &needed.max_batch,
            Some("none, or requests for more are refused"),
        ),
        (
            "max_request_expires",
            &seen.max_expires,
            &needed.max_expires,
            Some("none, or requests that last longer are refused"),
        ),
        (
            "priority_policy",
            &seen.priority_policy,
            &needed.priority_policy,
            Some("none, or requests without a group are refused"),
        ),
        (
            "max_ack_pending",
            &seen.max_ack_pending,
            &needed.max_ack_pending,
            None,
        ),
    ];
    settings
        .into_iter()
        .map(|(setting, seen, needed, words)| (setting, format!("{seen:?}"), format!("{needed:?}"), words))
        .filter(|(_, seen, needed, _)| seen != needed)
        .map(|(setting, seen, needed, words)| {
            format!("{setting} is {seen}, must be {}", words.unwrap_or(&needed))
        })
        .collect()
}

pub(crate) fn fitted(base: pull::Config, spec: &ConsumerSpec, bound: i64) -> pull::Config {
    let has_groups = base.priority_policy != PriorityPolicy::None;
    let is_batch_short =
        base.max_batch > 0 && usize::try_from(base.max_batch).is_ok_and(|batch| batch < spec.prefetch);
    let is_expiry_short = !base.max_expires.is_zero() && base.max_expires < EXPIRES;
    pull::Config {
        ack_wait: base.ack_wait.max(spec.ack_wait),
        max_ack_pending: bound,
        max_deliver: UNLIMITED,
        headers_only: false,
        inactive_threshold: Duration::ZERO,
        backoff: Vec::new(),
        max_batch: if is_batch_short { 0 } else { base.max_batch },
        max_expires: if is_expiry_short {
            Duration::ZERO
        } else {
            base.max_expires
        },
        priority_policy: PriorityPolicy::None,
        priority_groups: if has_groups {
            Vec::new()
        } else {
            base.priority_groups.clone()
        },
        ..base
    }
}

pub(crate) fn warnings(
    seen: &pull::Config,
    spec: &ConsumerSpec,
    replicas: usize,
    now: OffsetDateTime,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |wrong: bool, text: String| {
        if wrong {
            warnings.push(text);
        }
    };
    warn(
        seen.ack_wait > spec.ack_wait,
        format!(
            "ack_wait stays at {:?}, because another version of the program may need it; for the {:?} of this version, run: nats consumer edit <stream> {} --wait={}ms",
            seen.ack_wait,
            spec.ack_wait,
            spec.name,
            spec.ack_wait.as_millis()
        ),
    );
    warn(
        started_elsewhere(&seen.deliver_policy, spec.start_at),
        format!(
            "deliver_policy stays {:?}, because the consumer exists and keeps its position; `{:?}` applies to new consumers only; to start elsewhere, use another consumer name",
            seen.deliver_policy, spec.start_at
        ),
    );
    warn(
        (1..WAITING_NEEDED).contains(&seen.max_waiting),
        format!(
            "max_waiting is {}, so requests of many processes are rejected in turns; it must be {WAITING_NEEDED} or more and cannot be changed; use another consumer name",
            seen.max_waiting
        ),
    );
    warn(
        seen.rate_limit > 0,
        format!(
            "rate_limit is {} bits per second, so messages may be late; 0 means no limit",
            seen.rate_limit
        ),
    );
    // The server keeps the end time of a finished pause.
    if let Some(until) = seen.pause_until.filter(|until| *until > now) {
        warn(
            true,
            format!("the consumer is paused until {until}; end the pause with: nats consumer resume"),
        );
    }
    warn(
        seen.memory_storage,
        "the consumer is in memory: after a restart of its server it starts again, and handled messages are redelivered"
            .to_owned(),
    );
    warn(
        seen.num_replicas > 0 && seen.num_replicas < replicas,
        format!(
            "the consumer has {} replicas, and its stream has {replicas}: the loss of a server may stop the consumer",
            seen.num_replicas
        ),
    );
    warnings
}

fn started_elsewhere(seen: &DeliverPolicy, start_at: StartAt) -> bool {
    match start_at {
        StartAt::Time(time) => listing::since(time).as_ref() != Some(seen),
        // The start is a sequence if this library created the consumer, `New` if an operator did.
        StartAt::New => !matches!(seen, DeliverPolicy::ByStartSequence { .. } | DeliverPolicy::New),
        _ => *seen != DeliverPolicy::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn spec() -> ConsumerSpec {
        ConsumerSpec {
            name: "billing".to_owned(),
            events: Vec::new(),
            ack_wait: Duration::from_secs(30),
            whole_aggregates: false,
            siblings: Vec::new(),
            in_flight_max: 8,
            prefetch: 8,
            start_at: outbox_core::StartAt::Beginning,
        }
    }

    fn good() -> pull::Config {
        fitted(pull::Config::default(), &spec(), 8)
    }

    fn with(change: impl FnOnce(&mut pull::Config)) -> pull::Config {
        let mut config = good();
        change(&mut config);
        config
    }

    #[test]
    fn created_consumer_needs_no_change_and_no_warning() {
        assert_eq!(changes(&good(), &spec(), Some(8)), [""; 0]);
        assert_eq!(warnings(&good(), &spec(), 3, NOW), [""; 0]);
    }

    #[test]
    fn harmful_setting_is_changed() {
        let second = Duration::from_secs(1);
        for (setting, needed, config) in [
            ("ack_wait", "30s", with(|config| config.ack_wait = second)),
            ("max_deliver", "-1", with(|config| config.max_deliver = 3)),
            (
                "headers_only",
                "false, ",
                with(|config| config.headers_only = true),
            ),
            (
                "inactive_threshold",
                "none, ",
                with(|config| config.inactive_threshold = second),
            ),
            ("backoff", "none, ", with(|config| config.backoff = vec![second])),
            ("max_request_batch", "none, ", with(|config| config.max_batch = 7)),
            (
                "max_request_expires",
                "none, ",
                with(|config| config.max_expires = EXPIRES / 2),
            ),
            (
                "priority_policy",
                "none, ",
                with(|config| config.priority_policy = PriorityPolicy::Overflow),
            ),
            ("max_ack_pending", "8", with(|config| config.max_ack_pending = 1)),
        ] {
            let seen = changes(&config, &spec(), Some(8));
            assert!(seen.len() == 1 && seen[0].starts_with(setting), "{seen:?}");
            assert!(seen[0].contains(&format!("must be {needed}")), "{seen:?}");
            let fitted = fitted(config, &spec(), 8);
            assert_eq!(changes(&fitted, &spec(), Some(8)), [""; 0], "{setting}");
        }
    }

    #[test]
    fn sufficient_setting_stays() {
        let minute = Duration::from_mins(1);
        let roomy = with(|config| {
            config.ack_wait = minute;
            config.max_batch = 8;
            config.max_expires = EXPIRES;
        });
        assert_eq!(changes(&roomy, &spec(), Some(8)), [""; 0]);
        assert_eq!(fitted(roomy.clone(), &spec(), 8), roomy);
    }

    #[test]
    fn unchangeable_or_intended_setting_is_a_warning() {
        for (value, config) in [
            ("60s", with(|config| config.ack_wait = Duration::from_mins(1))),
            ("New", with(|config| config.deliver_policy = DeliverPolicy::New)),
            ("max_waiting is 2", with(|config| config.max_waiting = 2)),
            ("in memory", with(|config| config.memory_storage = true)),
            ("rate_limit is 1000", with(|config| config.rate_limit = 1000)),
            ("1 replicas", with(|config| config.num_replicas = 1)),
            (
                "the consumer is paused until 1970-01-01",
                with(|config| config.pause_until = Some(NOW + Duration::from_mins(1))),
            ),
        ] {
            let seen = warnings(&config, &spec(), 3, NOW);
            assert!(seen.len() == 1 && seen[0].contains(value), "{seen:?}");
        }
    }

    #[test]
    fn ended_pause_is_no_warning() {
        let over = with(|config| config.pause_until = Some(NOW));
        assert_eq!(warnings(&over, &spec(), 3, NOW), [""; 0]);
    }

    #[test]
    fn different_start_is_a_warning() {
        let time = OffsetDateTime::UNIX_EPOCH;
        let policies = [
            (StartAt::Beginning, DeliverPolicy::All),
            (StartAt::New, DeliverPolicy::ByStartSequence { start_sequence: 7 }),
            (StartAt::Time(time), listing::since(time).unwrap()),
        ];
        for (index, (start_at, _)) in policies.iter().enumerate() {
            for (other, (_, policy)) in policies.iter().enumerate() {
                let spec = ConsumerSpec {
                    start_at: *start_at,
                    ..spec()
                };
                let config = with(|config| config.deliver_policy = *policy);
                let seen = warnings(&config, &spec, 3, NOW);
                assert_eq!(seen.len(), usize::from(index != other), "{seen:?}");
                assert!(
                    seen.iter()
                        .all(|warning| warning.contains("use another consumer name"))
                );
            }
        }
    }
}

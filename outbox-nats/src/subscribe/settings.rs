//! Compares the settings of a durable with the required settings, without a server.
//!
//! Invariants: a setting that would drop, truncate or reject messages is changed. A setting that
//! cannot be changed, or that an operator may have chosen, causes a warning. `ack_wait` is never
//! lowered, because another version of the program may need a longer `ack_wait`.

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

pub(crate) fn fitted(base: pull::Config, spec: &ConsumerSpec) -> pull::Config {
    let has_groups = base.priority_policy != PriorityPolicy::None;
    let is_batch_short =
        base.max_batch > 0 && usize::try_from(base.max_batch).is_ok_and(|batch| batch < spec.prefetch);
    let is_expiry_short = !base.max_expires.is_zero() && base.max_expires < EXPIRES;
    pull::Config {
        ack_wait: base.ack_wait.max(spec.ack_wait),
        max_ack_pending: i64::try_from(spec.in_flight_max).unwrap_or(i64::MAX),
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
        fitted(pull::Config::default(), &spec())
    }

    fn with(change: impl FnOnce(&mut pull::Config)) -> pull::Config {
        let mut config = good();
        change(&mut config);
        config
    }

    #[test]
    fn created_consumer_needs_no_change_and_no_warning() {
        assert_eq!(fitted(good(), &spec()), good());
        assert_eq!(warnings(&good(), &spec(), 3, NOW), [""; 0]);
    }

    #[test]
    fn harmful_setting_is_changed() {
        let second = Duration::from_secs(1);
        for harmful in [
            with(|config| config.ack_wait = second),
            with(|config| config.max_deliver = 3),
            with(|config| config.headers_only = true),
            with(|config| config.inactive_threshold = second),
            with(|config| config.backoff = vec![second]),
            with(|config| config.max_batch = 7),
            with(|config| config.max_expires = EXPIRES / 2),
            with(|config| config.priority_policy = PriorityPolicy::Overflow),
            with(|config| config.max_ack_pending = 1),
        ] {
            assert_eq!(fitted(harmful, &spec()), good());
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
        assert_eq!(fitted(roomy.clone(), &spec()), roomy);
    }

    #[test]
    fn unchangeable_or_intended_setting_is_a_warning() {
        for (value, config) in [
            ("60s", with(|config| config.ack_wait = Duration::from_mins(1))),
            ("New", with(|config| config.deliver_policy = DeliverPolicy::New)),
            ("max_waiting is 2", with(|config| config.max_waiting = 2)),
            ("in memory", with(|config| config.memory_storage = true)),
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

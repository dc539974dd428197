//! Explains missing, failing and disagreeing relays, from registrations and lease expiry only.

use outbox::core::message::PARTITIONS;
use outbox::core::store::LEASE_TTL_MAX;
use outbox::core::{
    ExpiredRelay, LiveRelay, OwnerId, PartitionOwner, RelayHealth, RelayTrouble, TroubleClass,
};

use crate::admin::verdict::{Reason, State};
use crate::admin::words::in_words;

fn named(name: Option<&str>, owner: OwnerId) -> String {
    match name {
        Some(name) => format!("relay `{name}`"),
        None => format!("relay {owner}"),
    }
}

pub(crate) fn none_alive(expired: &[ExpiredRelay]) -> String {
    let Some(last) = expired.iter().min_by_key(|relay| relay.expired_for) else {
        return "no relay is alive".to_owned();
    };
    let mut what = format!(
        "no relay is alive; {} expired {} ago without a clean stop: its process died, or it cannot write to the database (network, \
         login, or read-only server)",
        named(last.name.as_deref(), last.owner),
        in_words(last.expired_for)
    );
    if let Some(trouble) = &last.trouble {
        what = format!("{what}; its last error: {}", trouble.error);
    }
    what
}

pub(crate) struct Failing {
    /// Whether every live relay is unable to work, and none is recovering.
    pub(crate) is_stuck: bool,
    pub(crate) what: String,
}

pub(crate) fn failing(relays: &[LiveRelay]) -> Option<Failing> {
    let is_down =
        |relay: &LiveRelay| matches!(relay.health, RelayHealth::Unhealthy | RelayHealth::Recovering);
    let fails = |relay: &&LiveRelay| {
        relay.health == RelayHealth::Unhealthy || (is_down(relay) && relay.trouble.is_some())
    };
    let failing: Vec<&LiveRelay> = relays.iter().filter(fails).collect();
    let count = match (failing.len(), relays.len()) {
        (0, _) => return last_failure(relays),
        (1, 1) => "the only live relay is unhealthy".to_owned(),
        (failing, all) if failing == all => format!("all {all} live relays are unhealthy"),
        (failing, all) => format!("{failing} of {all} relays are unhealthy"),
    };
    let trouble = failing
        .iter()
        .filter_map(|relay| Some((relay, relay.trouble.as_ref()?)))
        .max_by_key(|(_, trouble)| trouble.failing_for);
    let what = match trouble {
        Some((relay, trouble)) => format!("{count}: {}", fails_at(relay, trouble)),
        None => format!(
            "{count}: the broker does not confirm, or the database fails; the relay's log has the error"
        ),
    };
    Some(Failing {
        is_stuck: failing.len() == relays.len(),
        what,
    })
}

fn last_failure(relays: &[LiveRelay]) -> Option<Failing> {
    let troubles = relays
        .iter()
        .filter_map(|relay| Some((relay, relay.trouble.as_ref()?)));
    let (relay, trouble) = troubles.max_by_key(|(_, trouble)| trouble.failing_for)?;
    let last = match trouble.class {
        TroubleClass::Database => "its last statement failed".to_owned(),
        class => format!("its last publish failed ({})", class.as_str()),
    };
    Some(Failing {
        is_stuck: false,
        what: format!(
            "{}: {last}; failing for {}: {}",
            named(relay.name.as_deref(), relay.owner),
            in_words(trouble.failing_for),
            trouble.error
        ),
    })
}

pub(crate) fn of_relay(relay: &LiveRelay) -> Option<String> {
    relay.trouble.as_ref().map(|trouble| fails_at(relay, trouble))
}

fn fails_at(relay: &LiveRelay, trouble: &RelayTrouble) -> String {
    let at = match trouble.class {
        TroubleClass::Database => "the database".to_owned(),
        class => format!("the broker ({})", class.as_str()),
    };
    format!(
        "{} has failed at {at} for {}: {}",
        named(relay.name.as_deref(), relay.owner),
        in_words(trouble.failing_for),
        trouble.error
    )
}

pub(crate) fn reasons(relays: &[LiveRelay]) -> Vec<Reason> {
    let failing = failing(relays).map(|failing| {
        let state = match failing.is_stuck {
            true => State::Stuck,
            false => State::Degraded,
        };
        Reason::new(state, failing.what, "outbox relay list")
    });
    let apart = disagreeing(relays).map(|what| Reason::new(State::Degraded, what, "outbox relay list"));
    failing.into_iter().chain(apart).collect()
}

pub(crate) fn leases(leases: &[PartitionOwner]) -> Option<Reason> {
    let present = u16::try_from(leases.len()).unwrap_or(u16::MAX);
    if present < PARTITIONS {
        let missing = PARTITIONS - present;
        let what = format!(
            "{missing} of {PARTITIONS} partitions have no row in the table of leases, so no relay publishes their messages"
        );
        return Some(Reason::new(State::Stuck, what, "outbox migrate --yes"));
    }
    let ahead = leases.iter().filter(|lease| lease.is_ahead).count();
    let what = format!(
        "{ahead} leases were granted before the database's clock was set back; relays take these partitions within {} s",
        LEASE_TTL_MAX.as_secs()
    );
    (ahead > 0).then(|| Reason::new(State::Degraded, what, "outbox relay list"))
}

fn disagreeing(relays: &[LiveRelay]) -> Option<String> {
    let mut registered = relays
        .iter()
        .filter_map(|relay| Some((relay, relay.registration.destination.as_ref()?)));
    let (first, destination) = registered.next()?;
    let (other, elsewhere) = registered.find(|(_, other)| !other.agrees_with(destination))?;
    Some(format!(
        "the relays disagree: {} to {destination}, {} to {elsewhere}",
        named(first.name.as_deref(), first.owner),
        named(other.name.as_deref(), other.owner)
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox::core::{Destination, FailureClass, Registration, RelayMode};

    use super::*;

    fn relay(name: &str, health: RelayHealth, error: Option<&str>, source: &str) -> LiveRelay {
        let destination = Destination {
            stream: "ORDERS".to_owned(),
            instance: None,
            subjects: "events.{aggregate}.{id}.{event}".to_owned(),
            source: source.to_owned(),
        };
        LiveRelay {
            owner: OwnerId::fresh(),
            name: Some(name.to_owned()),
            health,
            expires_in: Duration::from_secs(15),
            registration: Registration::new(RelayMode::Polling, Some(destination), None),
            trouble: error.map(|error| RelayTrouble {
                class: TroubleClass::Broker(FailureClass::Transient),
                error: error.to_owned(),
                failing_for: Duration::from_secs(90),
            }),
        }
    }

    #[test]
    fn the_registered_error_of_failing_relays_is_named() {
        use RelayHealth::{Healthy, Recovering, Unhealthy};
        let (first, second) = (
            relay("a", Unhealthy, Some("no responders"), "shop"),
            relay("b", Recovering, Some("no responders"), "shop"),
        );
        let all = failing(&[first.clone(), second]).expect("both fail");
        assert!(all.is_stuck);
        let expected = "all 2 live relays are unhealthy: relay `b` has failed at the broker (transient) for 90 s: no responders";
        assert_eq!(all.what, expected);
        let some = failing(&[first, relay("c", Healthy, None, "shop")]).expect("one fails");
        assert!(
            !some.is_stuck && some.what.starts_with("1 of 2 relays"),
            "{}",
            some.what
        );
        assert!(failing(&[relay("c", Healthy, None, "shop")]).is_none());
    }

    #[test]
    fn working_relay_with_a_failure_is_not_unhealthy() {
        for health in [RelayHealth::Healthy, RelayHealth::Unknown] {
            let relays = [
                relay("a", health, Some("timed out"), "shop"),
                relay("b", RelayHealth::Healthy, None, "shop"),
            ];
            let found = failing(&relays).expect("a publish failed");
            assert!(!found.is_stuck);
            let what = "relay `a`: its last publish failed (transient); failing for 90 s: timed out";
            assert_eq!(found.what, what);
        }
    }

    #[test]
    fn disagreeing_relays_have_both_destinations() {
        let (first, second) = (
            relay("a", RelayHealth::Healthy, None, "shop"),
            relay("b", RelayHealth::Healthy, None, "outbox"),
        );
        assert_eq!(disagreeing(&[first.clone(), first.clone()]), None);
        let what = disagreeing(&[first, second]).expect("the sources differ");
        for part in ["`a`", "`b`", "source `shop`", "source `outbox`"] {
            assert!(what.contains(part), "{what}");
        }
    }

    #[test]
    fn crashed_last_relay_is_reported() {
        assert_eq!(none_alive(&[]), "no relay is alive");
        let LiveRelay {
            owner,
            name,
            registration,
            trouble,
            ..
        } = relay("a", RelayHealth::Healthy, Some("refused"), "shop");
        let expired = ExpiredRelay {
            owner,
            name,
            expired_for: Duration::from_secs(240),
            registration,
            trouble,
        };
        let what = none_alive(&[expired]);
        assert!(what.contains("relay `a` expired 4 min ago"), "{what}");
        assert!(what.ends_with("its last error: refused"), "{what}");
    }
}

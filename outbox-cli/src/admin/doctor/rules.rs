//! Doctor rules for databases and relays.

use std::time::Duration;

use outbox::core::{
    ExpiredRelay, LiveRelay, PartitionOwner, Pause, SetupKind, SetupProblem, StoreError, describe,
};
use time::OffsetDateTime;

use super::{Check, DatabaseFacts, Diagnosis};
use crate::admin::next::{Command, Next};
use crate::admin::pause::unpause_command;
use crate::admin::relay_causes;
use crate::admin::verdict::{Reason, State};

const CLOCKS_APART_MAX: Duration = Duration::from_secs(5);
const PAUSED_MAX: Duration = Duration::from_hours(24);

/// Findings from the setup check of a relay.
pub fn of_setup(checked: Result<Vec<SetupProblem>, StoreError>) -> Vec<Diagnosis> {
    let found = |state| move |problem: SetupProblem| of_problem(problem, state);
    match checked {
        Ok(warnings) => warnings.into_iter().flat_map(found(State::Degraded)).collect(),
        Err(StoreError::Setup(problem)) => found(State::Stuck)(problem),
        Err(error) => vec![Diagnosis::failed(
            Check::Database,
            describe(&error),
            "a reachable primary, and a valid login",
            Next::advice("correct DATABASE_URL, or start the server"),
        )],
    }
}

fn of_problem(problem: SetupProblem, state: State) -> Vec<Diagnosis> {
    let SetupProblem { kind, seen, repair } = problem;
    let (check, needed, next) = match kind {
        SetupKind::Rights => (
            Check::Rights,
            "the rights of a relay, if a relay uses this login",
            Next::advice(repair),
        ),
        SetupKind::Tables => (
            Check::Tables,
            "the tables of this version, in `schema` with `prefix`",
            "outbox migrate --yes".into(),
        ),
        SetupKind::Leases => (
            Check::Leases,
            "a row for each partition",
            "outbox migrate --yes".into(),
        ),
        SetupKind::RowSecurity(tables) => {
            let needed = "tables without row-level security, or a login with BYPASSRLS";
            let of_table = |table: String| {
                let (what, next) = ((&*table, seen.clone()), Next::advice(repair.clone()));
                Diagnosis::new(Check::RowSecurity, state, what, needed, next)
            };
            return tables.into_iter().map(of_table).collect();
        }
        SetupKind::Version => (
            Check::DatabaseVersion,
            "a supported version",
            Next::advice(repair),
        ),
        SetupKind::Login => (
            Check::Database,
            "a valid login",
            Next::advice("correct DATABASE_URL"),
        ),
        SetupKind::Tls => (
            Check::Database,
            "a certificate for this host name, signed by a trusted authority",
            Next::advice(
                "name the authority in DATABASE_URL: sslrootcert=FILE, for MariaDB and MySQL ssl-ca=FILE",
            ),
        ),
        _ => {
            let advice = match repair.as_str() {
                "" => "change the setting, and start the relay".to_owned(),
                _ => repair,
            };
            let needed = match state {
                State::Stuck => "a database that a relay can use",
                _ => "a setting without delays or losses",
            };
            (Check::DatabaseSetting, needed, Next::advice(advice))
        }
    };
    vec![Diagnosis::new(check, state, ("", seen), needed, next)]
}

/// Database findings.
pub fn of_database(facts: &DatabaseFacts) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = of_clock(facts).into_iter().collect();
    if facts.ahead_of_aggregates > 0 {
        let seen = format!(
            "{} of the newest messages have a sequence that outbox_aggregates has not assigned yet",
            facts.ahead_of_aggregates
        );
        found.push(Diagnosis::new(
            Check::Numbers,
            State::Stuck,
            ("", seen),
            "the last sequence of each aggregate: otherwise new messages reuse sequences",
            Next::advice(format!("run in the database: {}", facts.raise_numbers)),
        ));
    }
    found
}

fn warning(
    check: Check,
    what: (&str, String),
    needed: impl Into<String>,
    next: impl Into<Next>,
) -> Diagnosis {
    Diagnosis::new(check, State::Degraded, what, needed, next)
}

fn of_clock(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let seconds = facts.clock_ahead.abs();
    if seconds <= CLOCKS_APART_MAX.as_secs_f64() + facts.clock_error {
        return None;
    }
    let way = if facts.clock_ahead > 0.0 {
        "ahead"
    } else {
        "behind"
    };
    Some(warning(
        Check::Clock,
        ("", format!("the database is {seconds:.1}s {way} of this machine")),
        format!(
            "at most {}: delays, ages and retention compare clocks",
            span(CLOCKS_APART_MAX)
        ),
        Next::and_advice("chronyc tracking", "on both machines"),
    ))
}

/// Findings about relays. `as_relay`: whether the login has a relay's rights.
pub fn of_relays(relays: &[LiveRelay], expired: &[ExpiredRelay], as_relay: bool) -> Vec<Diagnosis> {
    if relays.is_empty() {
        let what = relay_causes::none_alive(expired);
        let needed = "one relay, better two: no message is published without a relay";
        let next = match as_relay && expired.is_empty() {
            true => "outbox relay run".into(),
            false => Next::start_relay(),
        };
        return vec![warning(Check::Relays, ("", what), needed, next)];
    }
    let needed = "relays that reach broker and database, with the same stream, subjects and source";
    let reasons = relay_causes::reasons(relays).into_iter();
    reasons
        .map(|reason| of_reason(Check::Relays, reason, needed))
        .collect()
}

fn of_reason(check: Check, reason: Reason, needed: &str) -> Diagnosis {
    Diagnosis::new(check, reason.state, ("", reason.what), needed, reason.next)
}

/// Lease findings.
pub fn of_leases(leases: &[PartitionOwner]) -> Vec<Diagnosis> {
    let needed = "a row for each partition, and leases that end within ten minutes";
    let reason = relay_causes::leases(leases).into_iter();
    reason
        .map(|reason| of_reason(Check::Leases, reason, needed))
        .collect()
}

/// Pauses and held messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PauseFacts {
    /// All pauses.
    pub pauses: Vec<Pause>,
    /// Paused aggregate types without aggregates or messages.
    pub unknown_types: Vec<String>,
    /// Aggregate types with held messages but no pause.
    pub without_pause: Vec<String>,
}

/// Findings about pauses, by their age at `now`.
pub fn of_pauses(held: &PauseFacts, now: OffsetDateTime) -> Vec<Diagnosis> {
    let standing = held.pauses.iter().filter(|pause| pause.stands());
    let mut found: Vec<Diagnosis> = standing.filter_map(|pause| of_pause(pause, now)).collect();
    found.extend(held.unknown_types.iter().map(|name| {
        warning(
            Check::Pauses,
            (
                name,
                format!("publishing of {name} is paused, and no aggregate of this type is known"),
            ),
            "the aggregate type as in the events: the intended type is not paused",
            unpause(Some(name)),
        )
    }));
    found.extend(held.without_pause.iter().map(|name| {
        Diagnosis::new(
            Check::Pauses,
            State::Stuck,
            (name, format!("messages of {name} are held without a pause")),
            "a pause for all held messages: its end releases them",
            Command::from("outbox pause --for 1s --reason release --yes").option("--aggregate-type", name),
        )
    }));
    found
}

fn of_pause(pause: &Pause, now: OffsetDateTime) -> Option<Diagnosis> {
    let age = Duration::try_from(now - pause.since).unwrap_or_default();
    if age <= PAUSED_MAX {
        return None;
    }
    let subject = pause.aggregate_type.as_deref();
    let (scope, by, reason) = (pause.scope(), &pause.by, &pause.reason);
    let hours = span(Duration::from_secs(age.as_secs() / 3600 * 3600));
    Some(warning(
        Check::Pauses,
        (
            subject.unwrap_or_default(),
            format!("publishing of {scope} has been paused for {hours} by {by}: {reason}"),
        ),
        format!("at most {}, unless the pause is intended", span(PAUSED_MAX)),
        unpause(subject),
    ))
}

fn unpause(aggregate_type: Option<&str>) -> Command {
    unpause_command(aggregate_type).flag("--yes")
}

pub(super) fn span(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match (seconds, millis) {
        (seconds, 1..) => format!("{}ms", u128::from(seconds) * 1000 + u128::from(millis)),
        (0, _) => "0s".to_owned(),
        (seconds, _) if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        (seconds, _) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        (seconds, _) => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_problem_has_its_check() {
        let checks = |kind| {
            let found = of_setup(Err(StoreError::setup(kind, "seen", "repair")));
            found.iter().map(|finding| finding.check).collect::<Vec<_>>()
        };
        for (kind, check) in [
            (SetupKind::Version, Check::DatabaseVersion),
            (SetupKind::Setting, Check::DatabaseSetting),
            (SetupKind::Tls, Check::Database),
            (SetupKind::RowSecurity(vec!["t".to_owned()]), Check::RowSecurity),
        ] {
            assert_eq!(checks(kind), [check]);
        }
    }

    #[test]
    fn clock_offset_within_latency_is_no_finding() {
        let facts = |ahead| DatabaseFacts {
            clock_ahead: ahead,
            clock_error: 3.0,
            ..DatabaseFacts::default()
        };
        assert_eq!(of_database(&facts(7.5)), []);
        for (ahead, word) in [(8.5, "ahead"), (-8.5, "behind")] {
            let found = of_database(&facts(ahead));
            assert!(found.len() == 1 && found[0].seen.contains(word), "{found:?}");
        }
    }

    #[test]
    fn a_pause_of_more_than_a_day_is_a_finding() {
        let since = OffsetDateTime::UNIX_EPOCH;
        let held = PauseFacts {
            pauses: vec![Pause {
                aggregate_type: None,
                reason: "overrun".to_owned(),
                by: "alice".to_owned(),
                since,
                ends_in: None,
            }],
            ..PauseFacts::default()
        };
        assert_eq!(of_pauses(&held, since + PAUSED_MAX), []);
        let found = of_pauses(&held, since + 2 * PAUSED_MAX);
        assert!(
            found.len() == 1 && found[0].seen.contains("48h by alice: overrun"),
            "{found:?}"
        );
    }
}

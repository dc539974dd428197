//! The checker's rule for pauses: no paused message is sent once every relay must have read the
//! pause.
//! Invariant: the time counts from the operator's action. A relay uses the pauses that it read for
//! half of `lease_ttl`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Checker;
use crate::simulation::Invariant;
use crate::simulation::history::{Life, MessageNo};

/// Pauses by aggregate type; `None` pauses everything.
#[derive(Debug, Default)]
pub(super) struct Paused {
    known_within: Duration,
    standing: BTreeMap<Option<&'static str>, Standing>,
    stood_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Standing {
    since: Instant,
    ends_at: Option<Instant>,
}

impl Standing {
    fn stands(&self, now: Instant) -> bool {
        self.ends_at.is_none_or(|ends_at| now < ends_at)
    }
}

impl Paused {
    pub(super) fn new(lease_ttl: Duration) -> Self {
        Self {
            known_within: lease_ttl / 2,
            ..Self::default()
        }
    }

    pub(super) fn stood_since(&self, time: Instant) -> bool {
        let mut standing = self.standing.values();
        self.stood_until.is_some_and(|until| until >= time)
            || standing.any(|pause| pause.ends_at.is_none_or(|ends_at| ends_at >= time))
    }

    fn stands_for(&self, aggregate_type: &str, now: Instant) -> Option<Duration> {
        let pauses = [self.standing.get(&None), self.standing.get(&Some(aggregate_type))];
        let pauses = pauses.into_iter().flatten().filter(|pause| pause.stands(now));
        pauses.map(|pause| now - pause.since).max()
    }
}

impl Checker {
    pub(in super::super) fn pauses(&mut self, scope: Option<&'static str>, lasts: Option<Duration>) {
        let now = Instant::now();
        let what = scope.unwrap_or("everything");
        self.history
            .note(format!("publishing of {what} is paused, for {lasts:?}"));
        let before = self.paused.standing.get(&scope).filter(|pause| pause.stands(now));
        let since = before.map_or(now, |pause| pause.since);
        let ends_at = lasts.map(|lasts| now + lasts);
        let replaced = self.paused.standing.insert(scope, Standing { since, ends_at });
        let ended = replaced.and_then(|pause| pause.ends_at);
        self.paused.stood_until = self.paused.stood_until.max(ended);
    }

    pub(in super::super) fn unpauses(&mut self, scope: Option<&'static str>) {
        let what = scope.unwrap_or("everything");
        self.history.note(format!("the pause of {what} ends"));
        self.paused.standing.remove(&scope);
        self.paused.stood_until = Some(Instant::now());
    }

    pub(super) fn check_paused(&mut self, life: Life, no: MessageNo, aggregate_type: &str) {
        let stands_for = self.paused.stands_for(aggregate_type, Instant::now());
        let known_within = self.paused.known_within;
        let may_not_know = stands_for.is_none_or(|time| time <= known_within);
        self.demand(Invariant::Paused, may_not_know, || {
            format!(
                "relay run {life} sent message {no} of `{aggregate_type}`, paused for {stands_for:?}; the limit is {known_within:?}"
            )
        });
    }

    pub(super) fn was_paused_since(&self, time: Instant) -> bool {
        self.paused.stood_since(time)
    }
}

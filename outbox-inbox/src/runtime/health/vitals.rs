//! Recorded state of a consumer, and the health derived from it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::Health;
use tokio::time::Instant;

use super::{ConsumerHealth, ConsumerState, degraded, not_running, stuck, whole};
use crate::dedup::Outcome;

pub(super) const SILENCE_MAX: Duration = Duration::from_secs(90);

pub(super) const OVERDUE: Duration = Duration::from_secs(5);

pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct ConsumerVitals {
    name: &'static str,
    vitals: Mutex<Vitals>,
}

#[derive(Debug)]
struct Vitals {
    turned_at: Instant,
    /// `None` while the consumer runs, `Some(None)` after a requested stop, else
    /// `Some(Some(reason))`.
    stopped: Option<Option<String>>,
    paused_at: Option<Instant>,
    is_subscribed: bool,
    away: Option<Away>,
    database_failing: bool,
    jobs: usize,
    active_at: Instant,
    handlers: BTreeMap<u64, Running>,
    last_ticket: u64,
}

#[derive(Debug)]
struct Away {
    since: Instant,
    noted_at: Instant,
    reason: String,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    handler: &'static str,
    at: Instant,
    limit: Duration,
}

impl ConsumerVitals {
    pub(in crate::runtime) fn new(name: &'static str) -> Self {
        let now = Instant::now();
        Self {
            name,
            vitals: Mutex::new(Vitals {
                turned_at: now,
                stopped: None,
                paused_at: None,
                is_subscribed: false,
                away: Some(Away {
                    since: now,
                    noted_at: now,
                    reason: "not subscribed yet".to_owned(),
                }),
                database_failing: false,
                jobs: 0,
                active_at: now,
                handlers: BTreeMap::new(),
                last_ticket: 0,
            }),
        }
    }

    pub(in crate::runtime) fn turned(&self) {
        self.lock().turned_at = Instant::now();
    }

    pub(in crate::runtime) fn stopped(&self, reason: Option<String>) {
        self.lock().stopped = Some(reason);
    }

    pub(in crate::runtime) fn subscribed(&self) {
        let mut vitals = self.lock();
        vitals.is_subscribed = true;
        vitals.away = None;
    }

    pub(in crate::runtime) fn paused(&self, is_paused: bool) {
        let mut vitals = self.lock();
        vitals.paused_at = is_paused.then(|| vitals.paused_at.unwrap_or_else(Instant::now));
    }

    pub(in crate::runtime) fn subscribing(&self) {
        let mut vitals = self.lock();
        if vitals.away().is_none() {
            vitals.note_away("subscribing again");
        }
        vitals.is_subscribed = false;
    }

    pub(in crate::runtime) fn received(&self) {
        let mut vitals = self.lock();
        if vitals.is_subscribed {
            vitals.away = None;
        }
    }

    pub(in crate::runtime) fn trouble(&self, reason: &str) -> bool {
        let mut vitals = self.lock();
        let is_known = vitals.away().is_some_and(|away| away.reason == reason);
        vitals.note_away(reason);
        !is_known
    }

    pub(in crate::runtime) fn database_failed(&self) -> bool {
        !std::mem::replace(&mut self.lock().database_failing, true)
    }

    pub(in crate::runtime) fn ended(&self, outcome: &Outcome) {
        if *outcome == Outcome::Handled && std::mem::take(&mut self.lock().database_failing) {
            tracing::info!(consumer = self.name, "the database answers again");
        }
    }

    pub(in crate::runtime) fn begin_job(&self) -> Begun<'_> {
        let mut vitals = self.lock();
        vitals.active_at = Instant::now();
        vitals.jobs += 1;
        Begun {
            vitals: self,
            handler: None,
        }
    }

    pub(in crate::runtime) fn begin_handler(&self, handler: &'static str, limit: Duration) -> Begun<'_> {
        let mut vitals = self.lock();
        let at = Instant::now();
        vitals.active_at = at;
        vitals.last_ticket += 1;
        let ticket = vitals.last_ticket;
        vitals.handlers.insert(ticket, Running { handler, at, limit });
        Begun {
            vitals: self,
            handler: Some(ticket),
        }
    }

    pub(super) fn report(&self, stuck_after: Duration) -> ConsumerHealth {
        let vitals = self.lock();
        ConsumerHealth {
            consumer: self.name,
            state: match &vitals.stopped {
                None => match vitals.paused_at {
                    Some(at) => ConsumerState::Paused {
                        paused_for: at.elapsed(),
                    },
                    None => ConsumerState::Running,
                },
                Some(reason) => ConsumerState::Stopped {
                    reason: reason.clone(),
                },
            },
            health: vitals.health(stuck_after),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vitals> {
        self.vitals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vitals {
    fn away(&self) -> Option<&Away> {
        self.away
            .as_ref()
            .filter(|away| !self.is_subscribed || away.noted_at.elapsed() < FORGOTTEN_AFTER)
    }

    fn note_away(&mut self, reason: &str) {
        let now = Instant::now();
        self.away = Some(Away {
            since: self.away().map_or(now, |away| away.since),
            noted_at: now,
            reason: reason.to_owned(),
        });
    }

    fn health(&self, stuck_after: Duration) -> Health {
        if let Some(reason) = &self.stopped {
            return not_running(match reason {
                Some(reason) => format!("the consumer has stopped: {reason}"),
                None => "the consumer has stopped".to_owned(),
            });
        }
        let silent = self.turned_at.elapsed();
        if silent > SILENCE_MAX {
            return not_running(format!("main loop without progress for {:?}", whole(silent)));
        }
        let is_overdue = |handler: &&Running| handler.at.elapsed() > handler.limit + OVERDUE;
        if let Some(Running { handler, at, limit }) = self.handlers.values().find(is_overdue) {
            return not_running(format!(
                "handler `{handler}` has run for {:?} (limit {limit:?}) and cannot be cancelled, because it \
                 blocks its thread; use `await`, or move the work to `spawn_blocking`",
                whole(at.elapsed())
            ));
        }
        let idle = self.active_at.elapsed();
        if self.jobs > 0 && self.handlers.is_empty() && idle >= stuck_after {
            return stuck(format!(
                "no started message has progressed for {:?}: the database or the broker does not answer",
                whole(idle)
            ));
        }
        match self.away() {
            _ if self.paused_at.is_some() => Health::Alive,
            None => Health::Alive,
            Some(Away { since, reason, .. }) => {
                let away_for = since.elapsed();
                let text = format!("no subscription for {:?}: {reason}", whole(away_for));
                if away_for >= stuck_after {
                    stuck(text)
                } else {
                    degraded(text)
                }
            }
        }
    }
}

#[derive(Debug)]
pub(in crate::runtime) struct Begun<'a> {
    vitals: &'a ConsumerVitals,
    handler: Option<u64>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut vitals = self.vitals.lock();
        vitals.active_at = Instant::now();
        match self.handler {
            Some(ticket) => {
                vitals.handlers.remove(&ticket);
            }
            None => vitals.jobs -= 1,
        }
    }
}

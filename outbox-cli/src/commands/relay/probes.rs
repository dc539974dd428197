//! Combined health of all outboxes.
//!
//! A relay that waits for its servers at the start is degraded: alive, because a restart would
//! not help, but not ready.

use std::sync::{Arc, Mutex, PoisonError};

use outbox::RunnerHealth;
use outbox::core::Health;

#[derive(Clone, Default)]
pub(super) struct Probes(Arc<Vec<Probe>>);

struct Probe {
    outbox: String,
    phase: Mutex<Phase>,
}

enum Phase {
    Starting(&'static str),
    /// The relay exists but is still checking database and stream, for a bounded time.
    Checking(RunnerHealth),
    Running(RunnerHealth),
}

impl Probes {
    pub(super) fn of<'a>(outboxes: impl IntoIterator<Item = &'a str>) -> Self {
        let outboxes = outboxes.into_iter().map(|outbox| Probe {
            outbox: outbox.to_owned(),
            phase: Mutex::new(Phase::Starting("not started")),
        });
        Self(Arc::new(outboxes.collect()))
    }

    pub(super) fn waits_for(&self, index: usize, what: &'static str) {
        self.set(index, Phase::Starting(what));
    }

    pub(super) fn runs(&self, index: usize, health: RunnerHealth) {
        self.set(index, Phase::Checking(health));
    }

    fn set(&self, index: usize, phase: Phase) {
        *self.0[index].phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    pub(super) fn now(&self) -> Health {
        Health::together(self.0.iter().map(|probe| (&probe.outbox, probe.now())))
    }

    pub(super) fn all_run(&self) -> bool {
        self.0.iter().all(|probe| {
            probe.now();
            matches!(
                *probe.phase.lock().unwrap_or_else(PoisonError::into_inner),
                Phase::Running(_)
            )
        })
    }
}

impl Probe {
    fn now(&self) -> Health {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let starting = |what: &str| Health::Degraded {
            reasons: vec![format!("starting: {what}")],
        };
        match &*phase {
            Phase::Starting(what) => starting(what),
            Phase::Running(health) => health.now(),
            Phase::Checking(health) => {
                let now = health.now();
                if !now.is_alive() {
                    return starting("checking database and stream");
                }
                let health = health.clone();
                *phase = Phase::Running(health);
                now
            }
        }
    }
}

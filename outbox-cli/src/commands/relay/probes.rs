//! Health of all relays from the start of the program.
//!
//! A relay that waits for its servers at the start is degraded: alive, because a restart would
//! not help, but not ready.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox::RunnerHealth;
use outbox::core::Health;

#[derive(Clone)]
pub(super) struct Probes(Vec<Probe>);

#[derive(Clone)]
pub(super) struct Probe {
    outbox: String,
    phase: Arc<Mutex<Phase>>,
}

enum Phase {
    Starting(&'static str),
    Checking(RunnerHealth),
    Running(RunnerHealth),
}

impl Probes {
    pub(super) fn new(probes: Vec<Probe>) -> Self {
        Self(probes)
    }

    pub(super) fn now(&self) -> Health {
        Health::together(self.0.iter().map(|probe| (&probe.outbox, probe.now())))
    }

    pub(super) fn all_run(&self) -> bool {
        self.0.iter().all(Probe::is_running)
    }
}

impl Probe {
    pub(super) fn new(outbox: &str) -> Self {
        Self {
            outbox: outbox.to_owned(),
            phase: Arc::new(Mutex::new(Phase::Starting("not started"))),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waits_for(&self, what: &'static str) {
        *self.phase() = Phase::Starting(what);
    }

    pub(super) fn runs(&self, health: RunnerHealth) {
        *self.phase() = Phase::Checking(health);
    }

    fn is_running(&self) -> bool {
        self.now();
        matches!(*self.phase(), Phase::Running(_))
    }

    fn now(&self) -> Health {
        let mut phase = self.phase();
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

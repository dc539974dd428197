//! Renews leases, shares partitions, hands over from an unhealthy relay, and probes the broker.
//!
//! Invariants: no partition is released with a message in flight. An unhealthy relay drops the
//! broker's connection before it releases partitions, so few messages arrive late. A probe only
//! reads.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Mode, Shared};
use crate::health::{Activity, Trouble};
use crate::publisher::{Destination, FailureClass, PublishError, Publisher};
use crate::relay::RelayError;
use crate::relay::agreement::Disagreement;
use crate::relay::outage::WORK;
use crate::relay::ownership::Renewal;
use crate::relay::pauses::Pauses;
use crate::store::{Announcement, Lease, OutboxStore, Pause, Registration, StoreError, TroubleClass, within};
use crate::{describe, telemetry};

pub(super) struct Leases {
    registration: Arc<Registration>,
    pub(super) hands_over: bool,
    pub(super) releases: bool,
    interruptions: u64,
    disagrees_since: Option<Instant>,
}

pub(super) struct Renewed {
    pub(super) leaves: bool,
    pub(super) lost: Vec<u16>,
    pub(super) outcome: Result<(), RelayError>,
}

pub(super) enum ProbeFailure {
    Store(StoreError),
    Publisher(PublishError),
}

impl Leases {
    pub(super) fn new(registration: Registration, interruptions: u64) -> Self {
        Self {
            registration: Arc::new(registration),
            hands_over: false,
            releases: false,
            interruptions,
            disagrees_since: None,
        }
    }

    pub(super) fn check(&mut self, shared: &mut Shared<'_>) {
        let interruptions = shared.part.interruptions();
        if std::mem::replace(&mut self.interruptions, interruptions) != interruptions {
            // After an interruption of the log reading, another relay may have read the same
            // messages.
            shared.ownership.distrust();
        }
        if let Some(slept) = shared.ownership.notice_suspension() {
            tracing::warn!(
                ?slept,
                "the machine was suspended, or its clock set forward; nothing is sent before the leases are renewed"
            );
        }
    }

    pub(super) fn step(
        &mut self,
        shared: &mut Shared<'_>,
        destination: impl FnOnce() -> Option<Destination>,
    ) -> Option<Renewal> {
        if !shared.ownership.is_due() {
            return None;
        }
        let destination = destination();
        if destination != self.registration.destination {
            Arc::make_mut(&mut self.registration).destination = destination;
        }
        let (health, trouble) = (shared.checkup.health(), shared.health.trouble());
        let (health, trouble) = shared.part.announced(health, trouble);
        Some(shared.ownership.plan(Announcement {
            health,
            registration: self.registration.clone(),
            trouble,
        }))
    }

    pub(super) fn done(
        &mut self,
        shared: &mut Shared<'_>,
        result: Result<Renewal, StoreError>,
    ) -> Result<Renewed, RelayError> {
        let (has_table, mut renewed) = (shared.part.has_table(), Renewed::default());
        let mut renewal = match result {
            Ok(renewal) => renewal,
            Err(error) => {
                let pause = shared.store_failed(Activity::Keeping, error)?;
                shared.ownership.postpone(pause);
                if shared.ownership.has_run_out() && has_table {
                    telemetry::leases_ran_out();
                }
                return Ok(renewed);
            }
        };
        let pause = match renewal.trouble.take() {
            Some(error) => shared.store_failed(Activity::Keeping, error)?,
            None => {
                shared.store_answered(Activity::Keeping);
                Duration::ZERO
            }
        };
        match renewal.disagreement.take() {
            Some(disagreement) if self.waits_for_agreement(shared, &disagreement) => {}
            Some(disagreement) => return Err(RelayError::OtherDestination(disagreement)),
            None => {
                self.disagrees_since = None;
                shared.part.agree();
            }
        }
        let proves = renewal.renews();
        let finished = std::mem::replace(&mut renewal.finished, Ok(false));
        let pauses = renewal.pauses.take();
        let has_read = pauses.is_some();
        if let Some(pauses) = pauses {
            pauses_read(shared, pauses);
        }
        let change = shared.ownership.apply(renewal);
        shared.ownership.postpone(pause);
        let owned = shared.ownership.leases().len();
        if has_table {
            telemetry::leases(owned, shared.ownership.relays());
        }
        if change.taken > 0 {
            tracing::info!(partitions = change.taken, owned, "leases acquired");
            shared.poller.restart();
        }
        renewed.leaves = !change.leaving.is_empty();
        self.hands_over |= renewed.leaves && shared.ownership.hands_over();
        for partition in change.leaving {
            shared.in_flight.drop_partition(partition);
        }
        if proves && has_table {
            telemetry::renewed();
        }
        renewed.lost = change.lost;
        if !renewed.lost.is_empty() {
            self.releases |= finished.unwrap_or(true);
            report_lost(has_table, renewed.lost.len());
        } else if has_read {
            renewed.outcome = self.pauses_finished(shared, finished);
        }
        Ok(renewed)
    }

    /// Waits for two lease durations before reporting a disagreement: the other relay may need to
    /// read its stream again
    /// ([`Checkup::next_probe_at`](crate::relay::checkup::Checkup::next_probe_at)).
    fn waits_for_agreement(&mut self, shared: &Shared<'_>, disagreement: &Disagreement) -> bool {
        let since = *self.disagrees_since.get_or_insert_with(|| {
            tracing::info!(%disagreement, "another live relay has another destination; it may need to read its stream again");
            Instant::now()
        });
        disagreement.is_of_instances()
            && shared.mode == Mode::Run
            && since.elapsed() < shared.config.lease_ttl * 2
    }

    /// A drain returns the first failure, and waits until messages of ended pauses are pending
    /// again.
    fn pauses_finished(
        &mut self,
        shared: &mut Shared<'_>,
        finished: Result<bool, StoreError>,
    ) -> Result<(), RelayError> {
        let more = match finished {
            Ok(more) => more,
            Err(error) if shared.mode == Mode::Drain => return Err(error.into()),
            Err(error) => {
                tracing::warn!(error = %describe(&error), "messages of an ended pause could not be released; the next renewal retries");
                return Ok(());
            }
        };
        if more || self.releases {
            shared.poller.restart();
        }
        if more {
            shared.ownership.renew_now();
        }
        self.releases = more;
        Ok(())
    }

    pub(super) fn surplus(&self, shared: &mut Shared<'_>) -> Option<Vec<Lease>> {
        let leaving = shared.ownership.leaving();
        let free = leaving.filter(|partition| !shared.in_flight.holds(*partition));
        let free: Vec<u16> = free.collect();
        if free.is_empty() || self.hands_over {
            return None;
        }
        let leases = shared.ownership.give_back(&free);
        Self::handed_over(shared);
        tracing::info!(partitions = free.len(), "leases released to share the partitions");
        Some(leases)
    }

    pub(super) fn released(shared: &mut Shared<'_>, released: Result<(), StoreError>) {
        Self::handed_over(shared);
        if let Err(error) = released {
            tracing::warn!(error = %describe(&error), "leases could not be released; they will expire");
        }
    }

    fn handed_over(shared: &mut Shared<'_>) {
        if shared.ownership.leases().is_empty() {
            shared.checkup.handed_over();
        }
    }

    /// A drain ends with its first failure, so it never probes.
    pub(super) fn check_up(&self, shared: &mut Shared<'_>) -> bool {
        if shared.mode == Mode::Drain {
            return false;
        }
        let since = [shared.store.failing_since(), shared.breaker.failing_since()];
        let failing_since = since.into_iter().flatten().min();
        if shared.ownership.relays().unhealthy == 0 {
            shared.checkup.forget_probes();
        }
        // A relay that hands everything over sends nothing, so only probes prove that it works.
        let keeps = !shared.ownership.leases().is_empty() && !shared.ownership.hands_over();
        if shared.checkup.check(failing_since, keeps, &mut shared.rng) {
            tracing::warn!("this relay is unhealthy; healthy relays take over its partitions");
        }
        self.next_probe_at(shared).is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn next_probe_at(&self, shared: &Shared<'_>) -> Option<Instant> {
        let owns = !shared.ownership.leases().is_empty();
        // A relay must release its partitions before it probes whether it has recovered.
        let gives_all = self.hands_over || (owns && shared.ownership.hands_over());
        if gives_all || shared.mode == Mode::Drain {
            return None;
        }
        let is_store_healthy = shared.store.failing_since().is_none();
        let failed_at = shared.breaker.failed_at().filter(|_| is_store_healthy);
        shared
            .checkup
            .next_probe_at(shared.ownership.relays(), owns, failed_at)
    }

    pub(super) fn probed(shared: &mut Shared<'_>, probed: Result<(), ProbeFailure>) {
        let owns = !shared.ownership.leases().is_empty();
        let begins = shared.checkup.probed(probed.is_ok(), owns, &mut shared.rng);
        match probed {
            Ok(()) if begins => {
                tracing::info!("broker and database answer again; this relay starts a trial");
                shared.breaker.try_again();
                shared.store.forget();
                shared.store.settle_after = None;
                shared.ownership.doubt();
                shared.health.update(|vitals| {
                    vitals.broker_failing = None;
                    for activity in WORK {
                        vitals.store[activity as usize].failing = None;
                    }
                });
            }
            Ok(()) => {}
            Err(failure) => {
                let (what, class, error): (_, _, &(dyn Error + 'static)) = match &failure {
                    ProbeFailure::Store(error) => ("database", TroubleClass::Database, error),
                    ProbeFailure::Publisher(error) => ("broker", TroubleClass::Broker(error.class()), error),
                };
                let reason = describe(error);
                tracing::debug!(what, %reason, "a probe failed");
                shared.health.update(|vitals| {
                    let trouble = match failure {
                        ProbeFailure::Store(_) => &mut vitals.store[Activity::Fetching as usize].failing,
                        ProbeFailure::Publisher(_) => &mut vitals.broker_failing,
                    };
                    Trouble::note(trouble, class, reason);
                });
            }
        }
    }

    pub(super) fn must_hand_over(&self, shared: &Shared<'_>) -> bool {
        self.hands_over || (shared.ownership.hands_over() && shared.store.is_failing(Activity::Settling))
    }
}

impl Default for Renewed {
    fn default() -> Self {
        Self {
            leaves: false,
            lost: Vec::new(),
            outcome: Ok(()),
        }
    }
}

pub(super) async fn probe<S: OutboxStore, P: Publisher>(
    store: &S,
    publisher: &P,
    deletes: bool,
    bound: Duration,
) -> Result<(), ProbeFailure> {
    let checked = within(
        bound,
        "the database could not be checked",
        store.preflight(deletes),
    )
    .await;
    checked.map_err(ProbeFailure::Store)?;
    let silent = |_| Err(PublishError::new(FailureClass::Unknown, "no answer in time"));
    let checked = timeout(bound, publisher.preflight()).await.unwrap_or_else(silent);
    checked.map(drop).map_err(ProbeFailure::Publisher)
}

fn pauses_read(shared: &mut Shared<'_>, read: Vec<Pause>) {
    let pauses = Pauses::new(read);
    if pauses.differs(&shared.pauses) {
        match pauses.count() {
            0 => tracing::info!("publishing is no longer paused"),
            _ => tracing::warn!(pauses = ?pauses.reasons(), "publishing is paused"),
        }
        shared.poller.restart();
    }
    if shared.part.has_table() {
        telemetry::pauses(pauses.count());
    }
    shared.health.update(|vitals| vitals.pauses = pauses.reasons());
    shared.pauses = pauses;
}

fn report_lost(has_table: bool, lost: usize) {
    if has_table {
        telemetry::leases_lost(lost);
        tracing::warn!(
            lost,
            "leases were lost; the relay was suspended or the database unavailable"
        );
    } else {
        tracing::info!("the log is no longer read: the session has ended, or the log was dropped");
    }
}

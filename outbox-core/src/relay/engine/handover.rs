//! Hands the partitions of an ailing relay over to others, and has it probe, try again, and take its share.
//!
//! Invariants: no partition is given back while a message of it is on its way. Before that the broker's connection is dropped, so that little arrives after the
//! next owner has begun; a message that arrives all the same carries its id. A probe only reads, and sends no message. A crash anywhere here leaves leases that
//! run out. When this happens is decided in [`fitness`](crate::relay::fitness), who takes how much in [`ownership`](crate::relay::ownership).

use std::error::Error;

use tokio::time::{Instant, timeout};

use super::{Engine, Mode};
use crate::describe;
use crate::health::{Activity, Trouble};
use crate::publisher::{FailureClass, PublishError, Publisher};
use crate::store::{OutboxStore, StoreError, TroubleClass, within};

/// Why a probe failed.
pub(super) enum Unfit {
    Store(StoreError),
    Publisher(PublishError),
}

/// The activities that make up a relay's work. `Keeping` is not among them: a relay that cannot renew its leases loses them, and then has nothing to hand over.
const WORK: [Activity; 3] = [Activity::Fetching, Activity::FetchingWaiting, Activity::Settling];

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    /// Checks how this relay is doing, and begins a probe if one is due. Not for a drain, which ends with the first trouble.
    pub(super) fn check_up(&mut self) {
        if self.mode == Mode::Drain {
            return;
        }
        let since = [self.store_failing_since(), self.breaker.failing_since()];
        let failing_since = since.into_iter().flatten().min();
        if self.ownership.relays().ailing == 0 {
            self.checkup.forget_probes();
        }
        // A relay that hands everything over sends nothing new, so that nothing can show that it works.
        let keeps = !self.ownership.leases().is_empty() && !self.ownership.hands_over();
        if self.checkup.check(failing_since, keeps, &mut self.rng) {
            tracing::warn!("this relay cannot do its work; others that can take its partitions over");
        }
        if self.next_probe_at().is_none_or(|at| Instant::now() < at) {
            return;
        }
        let (store, publisher, bound) = (
            &self.relay.store,
            &self.relay.publisher,
            self.config.store_timeout,
        );
        let deletes = self.config.retention.deletes();
        self.probing = Some(Box::pin(async move {
            let checked = store.preflight(deletes);
            let checked = within(bound, "the database could not be checked", checked).await;
            checked.map_err(Unfit::Store)?;
            let silent = |_| Err(PublishError::new(FailureClass::Unknown, "no answer in time"));
            let checked = timeout(bound, publisher.preflight()).await.unwrap_or_else(silent);
            checked.map(drop).map_err(Unfit::Publisher)
        }));
    }

    /// Since when the store has failed at this relay's work.
    fn store_failing_since(&self) -> Option<Instant> {
        let since = WORK.map(|activity| self.store_failing_since[activity as usize]);
        since.into_iter().flatten().min()
    }

    /// Forgets that settling failed once no verdict is left to settle, for example because its partition was lost. Only the next verdict can show whether it
    /// still fails.
    pub(super) fn forget_settling(&mut self) {
        if self.in_flight.not_taken() == 0 {
            self.store_failing_since[Activity::Settling as usize] = None;
            self.settle_after = self.settle_after.filter(|after| Instant::now() < *after);
        }
    }

    /// When the next probe is due, if one is wanted.
    pub(super) fn next_probe_at(&self) -> Option<Instant> {
        let owns = !self.ownership.leases().is_empty();
        // A relay that is about to hand over does not come back before it has done so.
        let gives_all = self.hands_over || (owns && self.ownership.hands_over());
        if self.probing.is_some() || gives_all || self.mode == Mode::Drain {
            return None;
        }
        let is_store_well = self.store_failing_since().is_none();
        let failed_at = self.breaker.failed_at().filter(|_| is_store_well);
        self.checkup
            .next_probe_at(self.ownership.relays(), owns, failed_at)
    }

    pub(super) fn probe_done(&mut self, probed: Result<(), Unfit>) {
        let owns = !self.ownership.leases().is_empty();
        let begins = self.checkup.probed(probed.is_ok(), owns, &mut self.rng);
        match probed {
            Ok(()) if begins => {
                tracing::info!("broker and database answer again; this relay tries to publish");
                self.breaker.try_again();
                self.store_failing_since = Default::default();
                self.settle_after = None;
                self.ownership.doubt();
                // Earlier failures say nothing of the trial, which may have to wait for a message.
                self.relay.health.update(|vitals| {
                    vitals.broker_failing = None;
                    WORK.into_iter()
                        .for_each(|activity| vitals.store[activity as usize].failing = None);
                });
            }
            Ok(()) => {}
            Err(unfit) => {
                let (what, class, error): (_, _, &(dyn Error + 'static)) = match &unfit {
                    Unfit::Store(error) => ("database", TroubleClass::Database, error),
                    Unfit::Publisher(error) => ("broker", TroubleClass::Broker(error.class()), error),
                };
                let reason = describe(error);
                tracing::debug!(what, %reason, "a probe failed");
                self.relay.health.update(|vitals| {
                    let trouble = match unfit {
                        Unfit::Store(_) => &mut vitals.store[Activity::Fetching as usize].failing,
                        Unfit::Publisher(_) => &mut vitals.broker_failing,
                    };
                    Trouble::note(trouble, class, reason);
                });
            }
        }
    }

    /// Ends the trial, if there is one: something failed through no message's fault.
    pub(super) fn end_trial(&mut self) {
        if self.checkup.failed(&mut self.rng) {
            tracing::warn!("this relay still cannot do its work");
            self.ownership.doubt();
        }
    }

    /// Whether all partitions go to others, or wait only for verdicts that this relay cannot settle.
    pub(super) fn must_hand_over(&self) -> bool {
        let cannot_settle = self.store_failing_since[Activity::Settling as usize].is_some();
        self.hands_over || (self.ownership.hands_over() && cannot_settle)
    }

    /// Hands all partitions over. Call it only when no publish is on its way.
    pub(super) async fn hand_over(&mut self) {
        self.hands_over = false;
        self.abandon().await;
        if self.store_failing_since[Activity::Settling as usize]
            .take()
            .is_some()
        {
            // This relay cannot settle the verdicts. That messages were published is forgotten, so they are sent again, and dropped as copies.
            self.generation += 1;
            self.in_flight.let_go();
            self.settling = None;
            self.settle_after = None;
            self.poller.restart();
        }
    }
}

//! Starts the calls to store and broker that fetch, publish, settle and upkeep request, each with a
//! timeout.

use std::pin::Pin;

use super::Engine;
use super::fetch::FetchDone;
use super::leases::{ProbeFailure, probe};
use super::settle::SettleDone;
use crate::publisher::Publisher;
use crate::relay::ownership::Renewal;
use crate::store::{Backlog, OutboxStore, Purged, StoreError, within};

const UNHURRIED: u32 = 6;

type Slot<'a, T> = Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

#[derive(Default)]
pub(super) struct Activities<'a> {
    pub(super) fetching: Slot<'a, FetchDone>,
    pub(super) settling: Slot<'a, SettleDone>,
    pub(super) renewing: Slot<'a, Result<Renewal, StoreError>>,
    pub(super) upkeep: UpkeepActivities<'a>,
}

#[derive(Default)]
pub(super) struct UpkeepActivities<'a> {
    pub(super) releasing: Slot<'a, Result<(), StoreError>>,
    pub(super) probing: Slot<'a, Result<(), ProbeFailure>>,
    pub(super) purging: Slot<'a, Result<Purged, StoreError>>,
    pub(super) counting: Slot<'a, Result<Backlog, StoreError>>,
}

pub(super) enum Ended {
    Released(Result<(), StoreError>),
    Purged(Result<Purged, StoreError>),
    Counted(Result<Backlog, StoreError>),
    Probed(Result<(), ProbeFailure>),
}

impl UpkeepActivities<'_> {
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Ended {
        tokio::select! {
            biased;
            released = done(&mut self.releasing) => Ended::Released(released),
            purged = done(&mut self.purging) => Ended::Purged(purged),
            counted = done(&mut self.counting) => Ended::Counted(counted),
            probed = done(&mut self.probing) => Ended::Probed(probed),
        }
    }
}

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    pub(super) fn start(&mut self) {
        let (store, publisher, under_way) = (&self.relay.store, &self.relay.publisher, &mut self.under_way);
        let shared = &mut self.shared;
        let bound = shared.config.store_timeout;
        if shared.in_flight.not_taken() == 0 {
            shared.store.forget_settling();
        }
        if self.stopping.is_some() {
            return;
        }
        if self.leases.check_up(shared) && under_way.upkeep.probing.is_none() {
            let deletes = shared.config.retention.deletes();
            under_way.upkeep.probing = Some(Box::pin(probe(store, publisher, deletes, bound)));
        }
        if under_way.renewing.is_none()
            && let Some(renewal) = self.leases.step(shared, || publisher.destination())
        {
            under_way.renewing = Some(Box::pin(renewal.run(store)));
        }
        if under_way.upkeep.releasing.is_none()
            && let Some(leases) = self.leases.surplus(shared)
        {
            let owner = shared.ownership.owner();
            under_way.upkeep.releasing = Some(Box::pin(async move {
                let released = store.release(owner, &leases);
                within(bound, "leases could not be released", released).await
            }));
        }
        if under_way.fetching.is_none()
            && let Some(asked) = self.fetch.step(shared)
        {
            under_way.fetching = Some(Box::pin(asked.run(store, bound)));
        }
        let bound = bound * UNHURRIED;
        if under_way.upkeep.purging.is_none()
            && let Some(request) = self.upkeep.step(shared)
        {
            let purged = store.purge(request);
            let purged = within(bound, "published messages could not be purged", purged);
            under_way.upkeep.purging = Some(Box::pin(purged));
        }
        if under_way.upkeep.counting.is_none() && self.upkeep.counts(shared) {
            let counted = within(bound, "the backlog could not be counted", store.backlog());
            under_way.upkeep.counting = Some(Box::pin(counted));
        }
    }

    pub(super) fn start_settling(&mut self, nothing_on_its_way: bool) {
        let (store, bound) = (&self.relay.store, self.shared.config.store_timeout);
        if self.under_way.settling.is_none()
            && let Some(batch) =
                self.settle
                    .step(&mut self.shared, nothing_on_its_way, self.stopping.is_some())
        {
            self.under_way.settling = Some(Box::pin(batch.run(store, bound)));
        }
    }
}

/// Cancel-safe.
pub(super) async fn done<T>(slot: &mut Slot<'_, T>) -> T {
    match slot {
        Some(activity) => {
            let output = activity.as_mut().await;
            *slot = None;
            output
        }
        None => std::future::pending().await,
    }
}

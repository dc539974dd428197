//! Settles verdicts, and finds the one that the store refuses.
//!
//! Invariants: verdicts that the store does not take stay, and nothing is sent meanwhile. If the store refuses one for its own sake
//! ([`StoreError::Refused`]), half as many are settled next, until that one is alone. It is kept apart and tried again later, and the others are recorded.
//! If many are refused one after the other and none is taken, the store is taken for failing, so that it is not stormed.

use tokio::time::Instant;

use super::{Engine, Mode, SETTLE_LINGER, SettleDone};
use crate::describe;
use crate::health::Activity;
use crate::publisher::Publisher;
use crate::relay::RelayError;
use crate::store::{OutboxStore, StoreError, within};
use crate::telemetry;

/// Verdicts are settled when there are this many, when the oldest is [`SETTLE_LINGER`] old, or when no publish is on its way.
pub(super) const SETTLE_BATCH: usize = 1024;

/// Refusals in a row after which the store is taken for failing. One verdict among all that may wait is found after fewer.
const REFUSALS_MAX: u32 = 64;

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    pub(super) fn start_settling(&mut self, nothing_on_its_way: bool) {
        if self.settling.is_some() {
            return;
        }
        let leases = self.ownership.leases().to_vec();
        let settlements = if self.is_retry_due() {
            match self.in_flight.begin_retry(leases.clone()) {
                Some(settlements) => settlements,
                None => return,
            }
        } else if self.is_settling_due(nothing_on_its_way) {
            self.in_flight.begin_settle(leases.clone())
        } else {
            return;
        };
        let (store, bound) = (&self.relay.store, self.config.store_timeout);
        self.settling = Some(Box::pin(async move {
            let began = Instant::now();
            let settled = store.settle(&leases, &settlements);
            let result = within(bound, "messages could not be settled", settled).await;
            SettleDone {
                took: began.elapsed(),
                result,
            }
        }));
    }

    fn is_settling_due(&self, nothing_on_its_way: bool) -> bool {
        let unsettled = self.in_flight.unsettled();
        let now = Instant::now();
        match self.settle_after {
            _ if unsettled == 0 => false,
            Some(after) => now >= after,
            None => {
                let since = self.in_flight.unsettled_since();
                let has_lingered = since.is_some_and(|since| since + SETTLE_LINGER <= now);
                nothing_on_its_way || has_lingered || unsettled >= SETTLE_BATCH
            }
        }
    }

    /// Whether a verdict that the store has refused is to be tried again. Not while it takes none at all.
    fn is_retry_due(&self) -> bool {
        self.retry_at().is_some_and(|at| at <= Instant::now())
    }

    /// When a verdict that the store has refused is to be tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let waits = self.settle_after.is_some() || self.stopping.is_some();
        self.in_flight.retry_at().filter(|_| !waits)
    }

    pub(super) fn settle_done(&mut self, settle: SettleDone) -> Result<(), RelayError> {
        telemetry::settle(settle.took);
        let accepted = match settle.result {
            Ok(accepted) => accepted,
            Err(error @ StoreError::Refused { .. }) => return self.refused_to_settle(error),
            Err(error) => {
                self.in_flight.not_settled(self.ownership.leases());
                return self.settling_failed(error);
            }
        };
        self.store_answered(Activity::Settling);
        self.settle_after = None;
        self.refusals = 0;
        let settled = self.in_flight.settled();
        self.recorded(settled, accepted);
        Ok(())
    }

    fn settling_failed(&mut self, error: StoreError) -> Result<(), RelayError> {
        // A drain ends with this error, and settles what it can while it stops.
        self.settle_after = Some(Instant::now() + self.config.backoff.min);
        let pause = self.store_failed(Activity::Settling, error)?;
        self.settle_after = Some(Instant::now() + pause);
        Ok(())
    }

    /// The store refused one of the verdicts. A crash leaves those messages as they were.
    fn refused_to_settle(&mut self, error: StoreError) -> Result<(), RelayError> {
        let nothing_is_taken = self.refusals >= REFUSALS_MAX;
        let (backoff, rng) = (self.config.backoff, &mut self.rng);
        let pause = |tries| backoff.delay(tries, rng);
        let owned = self.ownership.leases();
        let is_retry = self.in_flight.is_retrying();
        let alone = self.in_flight.refused(owned, nothing_is_taken, pause);
        // What is tried again now and then says nothing of other verdicts.
        if alone.is_some_and(|alone| !alone.again) {
            self.refusals = self.refusals.saturating_add(1);
        }
        if let Some(alone) = alone {
            let reason = describe(&error);
            tracing::error!(
                row_id = alone.row_id,
                %reason,
                "the database refuses the verdict on a message; it is tried again, and others go on"
            );
            self.relay.health.update(|vitals| vitals.refusal = reason);
        }
        if nothing_is_taken && !is_retry {
            return self.settling_failed(error);
        }
        // Otherwise a job that drains now and then would end here each time, and never come to the others.
        if self.mode == Mode::Drain {
            self.refusal.get_or_insert(error);
        }
        Ok(())
    }
}

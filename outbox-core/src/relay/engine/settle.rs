//! Settles verdicts, and isolates a verdict that the store rejects.
//!
//! Invariants:
//!
//! * Unrecorded verdicts are kept, and nothing is sent until they are recorded. After
//!   [`REFUSALS_MAX`] rejections in a row the store counts as failing.
//! * Only recorded verdicts are reported: none of a batch with a lost lease, and none after
//!   a crash.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::time::Instant;

use super::upkeep::PARTITION;
use super::{Mode, SETTLE_LINGER, Shared};
use crate::describe;
use crate::health::Activity;
use crate::relay::in_flight::Given;
use crate::relay::{DeadLetterHook, DeadMessage, RelayError, RelayReport};
use crate::store::{Lease, OutboxStore, Settlement, StoreError, within};
use crate::telemetry;

/// A settlement starts at this number of verdicts, when the oldest is [`SETTLE_LINGER`] old, or
/// when no publish is in flight.
pub(super) const SETTLE_BATCH: usize = 1024;

const REFUSALS_MAX: u32 = 64;

pub(super) struct Settle<'a> {
    refusals: u32,
    pub(super) refusal: Option<StoreError>,
    hook: Option<&'a DeadLetterHook>,
    pub(super) report: RelayReport,
}

pub(super) struct Batch {
    leases: Vec<Lease>,
    settlements: Vec<Settlement>,
}

pub(super) struct SettleDone {
    pub(super) took: Duration,
    pub(super) result: Result<usize, StoreError>,
}

impl Batch {
    pub(super) async fn run<S: OutboxStore>(self, store: &S, bound: Duration) -> SettleDone {
        let began = Instant::now();
        let settled = store.settle(&self.leases, &self.settlements);
        let result = within(bound, "messages could not be settled", settled).await;
        SettleDone {
            took: began.elapsed(),
            result,
        }
    }
}

impl<'a> Settle<'a> {
    pub(super) fn new(hook: Option<&'a DeadLetterHook>) -> Self {
        Self {
            refusals: 0,
            refusal: None,
            hook,
            report: RelayReport::default(),
        }
    }

    pub(super) fn step(
        &mut self,
        shared: &mut Shared<'_>,
        nothing_on_its_way: bool,
        is_stopping: bool,
    ) -> Option<Batch> {
        let retry_at = Self::retry_at(shared, is_stopping);
        let is_retry = retry_at.is_some_and(|at| at <= Instant::now());
        if !is_retry && !is_due(shared, nothing_on_its_way) {
            return None;
        }
        let leases = shared.ownership.leases().to_vec();
        let settlements = match is_retry {
            true => shared.in_flight.begin_retry(leases.clone())?,
            false => shared.in_flight.begin_settle(leases.clone()),
        };
        Some(Batch { leases, settlements })
    }

    pub(super) fn retry_at(shared: &Shared<'_>, is_stopping: bool) -> Option<Instant> {
        let waits = shared.store.settle_after.is_some() || is_stopping;
        shared.in_flight.retry_at().filter(|_| !waits)
    }

    pub(super) fn done(&mut self, shared: &mut Shared<'_>, settle: SettleDone) -> Result<(), RelayError> {
        telemetry::settle(settle.took);
        let accepted = match settle.result {
            Ok(accepted) => accepted,
            Err(error @ StoreError::Refused { .. }) => return self.refused(shared, error),
            Err(error) => {
                shared.in_flight.not_settled(shared.ownership.leases());
                return failed(shared, error);
            }
        };
        shared.store_answered(Activity::Settling);
        shared.store.settle_after = None;
        self.refusals = 0;
        let verdicts = shared.in_flight.settled();
        self.recorded(shared, verdicts, accepted);
        Ok(())
    }

    fn refused(&mut self, shared: &mut Shared<'_>, error: StoreError) -> Result<(), RelayError> {
        let nothing_is_taken = self.refusals >= REFUSALS_MAX;
        let (backoff, rng) = (shared.config.backoff, &mut shared.rng);
        let pause = |tries| backoff.delay(tries, rng);
        let owned = shared.ownership.leases();
        let is_retry = shared.in_flight.is_retrying();
        let alone = shared.in_flight.refused(owned, nothing_is_taken, pause);
        // If a verdict that was rejected before is rejected again, other verdicts may still be
        // accepted, so the rejection is not counted.
        if alone.is_some_and(|alone| !alone.again) {
            self.refusals = self.refusals.saturating_add(1);
        }
        if let Some(alone) = alone {
            let reason = describe(&error);
            tracing::error!(
                row_id = alone.row_id,
                %reason,
                "the database rejects the verdict on a message; the relay retries and continues with other messages"
            );
            shared.health.update(|vitals| vitals.refusal = reason);
        }
        if nothing_is_taken && !is_retry {
            return failed(shared, error);
        }
        // A drain reports the error only after it has tried all messages.
        if shared.mode == Mode::Drain {
            self.refusal.get_or_insert(error);
        }
        Ok(())
    }

    /// The store returns a count only, so no verdict of a batch with refused verdicts is reported.
    fn recorded(&mut self, shared: &mut Shared<'_>, verdicts: Vec<Given>, accepted: usize) {
        let refused = verdicts.len().saturating_sub(accepted);
        if refused > 0 {
            // The new owners of the partitions resend and settle these messages.
            tracing::warn!(refused, "leases were lost before settling");
            shared.ownership.doubt();
            return;
        }
        for given in verdicts {
            if given.is_published() {
                self.report.published += 1;
                shared.checkup.delivered();
            }
            self.report.duplicates += u64::from(given.is_duplicate);
            if let Some(dead) = &given.dead {
                self.report.dead_letters += 1;
                self.tell_dead_letter(shared, dead);
            }
        }
    }

    fn tell_dead_letter(&self, shared: &Shared<'_>, dead: &DeadMessage) {
        telemetry::dead_letter();
        if shared.ownership.keeps(PARTITION) {
            shared
                .health
                .update(|vitals| vitals.halted += u64::from(dead.halts));
        }
        if let Some(hook) = self.hook
            // `AssertUnwindSafe`: no value that `on_dead_letter` uses is used after a panic.
            && catch_unwind(AssertUnwindSafe(|| hook(dead))).is_err()
        {
            tracing::error!(message_id = ?dead.id, "the hook `on_dead_letter` panicked; the relay continues");
        }
    }
}

fn is_due(shared: &Shared<'_>, nothing_on_its_way: bool) -> bool {
    let unsettled = shared.in_flight.unsettled();
    let now = Instant::now();
    match shared.store.settle_after {
        _ if unsettled == 0 => false,
        Some(after) => now >= after,
        None => {
            let since = shared.in_flight.unsettled_since();
            let has_lingered = since.is_some_and(|since| since + SETTLE_LINGER <= now);
            nothing_on_its_way || has_lingered || unsettled >= SETTLE_BATCH
        }
    }
}

fn failed(shared: &mut Shared<'_>, error: StoreError) -> Result<(), RelayError> {
    shared.store.settle_after = Some(Instant::now() + shared.config.backoff.min);
    let pause = shared.store_failed(Activity::Settling, error)?;
    shared.store.settle_after = Some(Instant::now() + pause);
    Ok(())
}

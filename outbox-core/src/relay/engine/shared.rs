//! State shared by several parts of the engine, and the handling of store failures.

use std::time::Duration;

use tokio::time::Instant;

use super::Mode;
use crate::describe;
use crate::health::{Activity, Answers, HealthCheck, Trouble};
use crate::log::source::Part;
use crate::relay::checkup::Checkup;
use crate::relay::config::RelayConfig;
use crate::relay::in_flight::InFlight;
use crate::relay::outage::{StoreOutage, tell_outage};
use crate::relay::ownership::Ownership;
use crate::relay::pauses::Pauses;
use crate::relay::policy::Breaker;
use crate::relay::poller::Poller;
use crate::relay::{RelayError, suspension::Clocks};
use crate::store::{OwnerId, StoreError, TroubleClass};
use crate::telemetry;

use super::settle::SETTLE_BATCH;

pub(super) struct Shared<'a> {
    pub(super) config: &'a RelayConfig,
    pub(super) part: &'a Part,
    pub(super) health: &'a HealthCheck,
    pub(super) mode: Mode,
    pub(super) rng: fastrand::Rng,
    pub(super) in_flight: InFlight,
    pub(super) ownership: Ownership,
    pub(super) poller: Poller,
    pub(super) breaker: Breaker,
    pub(super) checkup: Checkup,
    pub(super) pauses: Pauses,
    pub(super) store: StoreOutage,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        config: &'a RelayConfig,
        part: &'a Part,
        health: &'a HealthCheck,
        clocks: Clocks,
        mode: Mode,
    ) -> Self {
        let seed = config.seed;
        let shares = mode == Mode::Run;
        Self {
            config,
            part,
            health,
            mode,
            rng: seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            in_flight: InFlight::default(),
            ownership: Ownership::new(OwnerId::fresh(), config, shares, clocks),
            poller: Poller::new(config),
            breaker: Breaker::new(config.backoff),
            checkup: Checkup::new(config.lease_ttl, config.store_timeout),
            pauses: Pauses::default(),
            store: StoreOutage::default(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let batch = self.config.batch.get() as usize;
        self.in_flight.queued() <= batch / 2
            && self.in_flight.bytes() <= self.config.buffer_bytes / 2
            && self.may_send()
    }

    /// While the store rejects the results of publishes, sending would only create duplicates.
    pub(super) fn may_send(&self) -> bool {
        let most = 4 * self.config.batch.get().max(SETTLE_BATCH as u32) as usize;
        self.store.settle_after.is_none()
            && self.in_flight.not_taken() + self.in_flight.refused_count() < most
    }

    pub(super) fn store_failed(
        &mut self,
        activity: Activity,
        error: StoreError,
    ) -> Result<Duration, RelayError> {
        if self.mode == Mode::Drain {
            return Err(error.into());
        }
        let failures = self.store.failed(activity);
        if activity != Activity::Keeping {
            self.end_trial();
        }
        let pause = self.config.backoff.delay(failures, &mut self.rng);
        let reason = describe(&error);
        let needs_somebody = !matches!(error, StoreError::Database { .. } | StoreError::Silent { .. });
        let is_news = self.store.outage.failed(needs_somebody, &reason);
        tell_outage!(is_news, activity = activity.as_str(), %reason, ?pause, "outbox store failed; relay backs off");
        telemetry::store_failed(activity);
        self.health.update(|vitals| {
            let failing = &mut vitals.store[activity as usize].failing;
            Trouble::note(failing, TroubleClass::Database, reason);
        });
        Ok(pause)
    }

    pub(super) fn store_answered(&mut self, activity: Activity) {
        if let Some(took) = self.store.answered(activity) {
            tracing::info!(?took, "the outbox store answers again");
        }
        self.health.update(|vitals| {
            vitals.store[activity as usize] = Answers {
                last: Some(Instant::now()),
                failing: None,
            };
        });
    }

    pub(super) fn end_trial(&mut self) {
        if self.checkup.failed(&mut self.rng) {
            tracing::warn!("this relay is still unhealthy");
            self.ownership.doubt();
        }
    }
}

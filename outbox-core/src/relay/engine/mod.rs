//! One run of a relay: a loop that overlaps fetching, publishing, settling and lease renewal. The
//! parts ([`leases`], [`fetch`], [`publish`], [`settle`], [`upkeep`]) decide without I/O which step
//! is due.
//!
//! Invariants: when lost leases reset the messages in memory, rows of an earlier fetch are dropped.
//! Every store call has a timeout. The run spawns no task, so a dropped run equals a crash: rows
//! stay pending or waiting, and the next owner resends their messages under the same ids.

mod activities;
mod fetch;
mod leases;
mod publish;
mod settle;
mod shared;
#[cfg(test)]
mod tests;
mod upkeep;

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use activities::{Activities, Ended, done};
use fetch::Fetch;
use leases::Leases;
use publish::{Publish, PublishDone, send};
use settle::Settle;
use shared::Shared;
use upkeep::{PARTITION, Upkeep};

use super::ownership::Renewal;
use super::{Relay, RelayError, RelayReport};
use crate::health::Activity;
use crate::publisher::Publisher;
use crate::shutdown::hurry;
use crate::store::{OutboxStore, Relays, StoreError};
use crate::{describe, telemetry, wake};

const SETTLE_LINGER: Duration = Duration::from_millis(20);
/// Pause before the next fetch. Crowded lanes (queues of aggregates with many messages in memory)
/// are excluded from that fetch.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
const PUBLISHES_PER_TURN: usize = 32;
const SETTLE_GRACE: Duration = Duration::from_secs(2);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Run,
    Drain,
}

pub(super) struct Engine<'a, S, P> {
    relay: &'a Relay<S, P>,
    shared: Shared<'a>,
    leases: Leases,
    fetch: Fetch,
    publish: Publish,
    settle: Settle<'a>,
    upkeep: Upkeep,
    under_way: Activities<'a>,
    stopping: Option<Stopping>,
}

#[derive(Debug, Clone, Copy)]
struct Stopping {
    confirm: Instant,
    end: Instant,
}

impl Stopping {
    fn after(wait: Duration) -> Self {
        let confirm = Instant::now() + wait;
        Self {
            confirm,
            end: confirm + SETTLE_GRACE,
        }
    }
}

impl<'a, S: OutboxStore, P: Publisher> Engine<'a, S, P> {
    pub(super) fn new(relay: &'a Relay<S, P>, mode: Mode) -> Self {
        let (config, part) = (&relay.config, &relay.part);
        let mut shared = Shared::new(config, part, &relay.health, relay.clocks.clone(), mode);
        Self {
            relay,
            leases: Leases::new(relay.registration(), part.interruptions()),
            fetch: Fetch::default(),
            publish: Publish::default(),
            settle: Settle::new(relay.on_dead_letter.as_deref()),
            upkeep: Upkeep::new(&mut shared),
            under_way: Activities::default(),
            stopping: None,
            shared,
        }
    }

    pub(super) fn store_is_down(&mut self) {
        self.shared.store.outage.was_told();
    }

    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<RelayReport, RelayError> {
        let (publisher, owner) = (&self.relay.publisher, self.shared.ownership.owner());
        tracing::info!(%owner, "relay started");
        let mut outcome = Ok(());
        let mut publishing = FuturesUnordered::new();
        let mut commits = wake::Listener::new();
        let hurry = hurry();
        loop {
            self.turn();
            if self.is_over(publishing.is_empty()) {
                break;
            }
            if self.leases.must_hand_over(&self.shared) && publishing.is_empty() {
                self.hand_over().await;
            }
            self.start();
            if self.stopping.is_none()
                && !self.leases.hands_over
                && let Some(starves) = Publish::step(&mut self.shared, publishing.len(), |queued| {
                    publishing.push(send(publisher, queued));
                })
            {
                self.fetch.crowded(&mut self.shared, starves);
            }
            self.start_settling(publishing.is_empty());
            let confirm_by = self.confirm_by();
            let next_at = self.next_at();
            let step = tokio::select! {
                biased;
                () = shutdown.cancelled(), if self.stopping.is_none() => {
                    self.stop(publishing.len());
                    Ok(())
                }
                () = hurry.cancelled(), if self.waits_long() => {
                    self.stopping = Some(Stopping::after(Duration::ZERO));
                    Ok(())
                }
                settled = done(&mut self.under_way.settling) => self.settle.done(&mut self.shared, settled),
                fetched = done(&mut self.under_way.fetching) => self.fetch.done(&mut self.shared, fetched),
                renewed = done(&mut self.under_way.renewing) => match self.renewed(renewed) {
                    Ok(true) => {
                        publishing.clear();
                        self.abandon().await;
                        Ok(())
                    }
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                },
                // A dropped publish has an unknown outcome: its message stays pending.
                () = sleep_until(confirm_by), if !publishing.is_empty() => {
                    publishing.clear();
                    self.overdue().await;
                    Ok(())
                }
                Some(publish) = publishing.next(), if !publishing.is_empty() => {
                    self.publishes_done(publish, &mut publishing)
                }
                ended = self.under_way.upkeep.next() => {
                    self.ended(ended);
                    Ok(())
                }
                () = commits.notified() => {
                    self.shared.poller.wake();
                    Ok(())
                }
                () = sleep_until(next_at) => Ok(()),
            };
            if let Err(error) = step {
                outcome = outcome.and(Err(error));
                if self.stopping.is_none() {
                    self.stop(publishing.len());
                }
            }
        }
        let unconfirmed = publishing.len();
        drop(publishing);
        self.finish(unconfirmed, outcome).await
    }

    async fn finish(
        mut self,
        unconfirmed: usize,
        mut outcome: Result<(), RelayError>,
    ) -> Result<RelayReport, RelayError> {
        if let Some(refusal) = self.settle.refusal.take() {
            outcome = outcome.and(Err(refusal.into()));
        }
        let owner = self.shared.ownership.owner();
        self.leave(unconfirmed).await;
        let report = RelayReport {
            failed: self.publish.failed,
            ..self.settle.report
        };
        tracing::info!(%owner, ?report, "relay stopped");
        outcome.map(|()| report)
    }

    fn ended(&mut self, ended: Ended) {
        let shared = &mut self.shared;
        match ended {
            Ended::Released(released) => Leases::released(shared, released),
            Ended::Purged(purged) => self.upkeep.purged(shared, purged),
            Ended::Counted(counted) => self.upkeep.counted(shared, counted),
            Ended::Probed(probed) => Leases::probed(shared, probed),
        }
    }

    fn publishes_done(
        &mut self,
        first: PublishDone,
        others: &mut FuturesUnordered<impl Future<Output = PublishDone>>,
    ) -> Result<(), RelayError> {
        let mut step = self.publish.done(&mut self.shared, first);
        for _ in 1..PUBLISHES_PER_TURN {
            let Some(Some(publish)) = others.next().now_or_never() else {
                break;
            };
            step = step.and(self.publish.done(&mut self.shared, publish));
        }
        step
    }

    fn turn(&mut self) {
        self.leases.check(&mut self.shared);
        let shared = &self.shared;
        shared.health.update(|vitals| {
            vitals.turned_at = Some(Instant::now());
            vitals.handed_over = shared.checkup.is_unhealthy() && shared.ownership.leases().is_empty();
            vitals.refused = shared.in_flight.refused_count();
            if shared.in_flight.is_empty() || shared.pauses.all() {
                vitals.waiting_since = None;
            } else {
                vitals.waiting_since.get_or_insert_with(Instant::now);
            }
        });
    }

    fn is_over(&self, nothing_on_its_way: bool) -> bool {
        let (shared, under_way) = (&self.shared, &self.under_way);
        let quiet = nothing_on_its_way && shared.in_flight.unsettled() == 0 && under_way.settling.is_none();
        match self.stopping {
            Some(stopping) => quiet || Instant::now() >= stopping.end,
            None => {
                let nothing_owned = shared.ownership.leases().is_empty() && !shared.ownership.is_due();
                shared.mode == Mode::Drain
                    && quiet
                    && under_way.renewing.is_none()
                    && !self.leases.releases
                    && (nothing_owned || self.has_found_all())
            }
        }
    }

    fn has_found_all(&self) -> bool {
        let shared = &self.shared;
        let has_ended = shared.in_flight.is_empty() && shared.poller.has_ended();
        shared.mode == Mode::Drain && (has_ended || shared.pauses.all())
    }

    fn stop(&mut self, unconfirmed: usize) {
        let at_most = self.shared.config.shutdown_timeout;
        if unconfirmed > 0 {
            tracing::info!(
                unconfirmed,
                ?at_most,
                "relay is stopping; waiting for the broker's confirmations"
            );
        }
        self.stopping = Some(Stopping::after(at_most));
    }

    fn waits_long(&self) -> bool {
        self.stopping
            .is_some_and(|stopping| stopping.confirm > Instant::now())
    }

    fn confirm_by(&self) -> Instant {
        let deadlines = self.shared.ownership.deadlines();
        let leased = deadlines.map_or_else(Instant::now, |deadlines| deadlines.confirm);
        self.stopping
            .map_or(leased, |stopping| leased.min(stopping.confirm))
    }

    fn next_at(&self) -> Instant {
        let (shared, under_way) = (&self.shared, &self.under_way);
        let mut next = Instant::now() + shared.config.poll_max;
        let mut at = |time: Option<Instant>| next = time.map_or(next, |time| next.min(time));
        at(self.stopping.map(|stopping| stopping.end));
        if under_way.settling.is_none() {
            at(shared.store.settle_after.or_else(|| {
                let since = shared.in_flight.unsettled_since();
                since.map(|since| since + SETTLE_LINGER)
            }));
            at(Settle::retry_at(shared, self.stopping.is_some()));
        }
        if self.stopping.is_some() {
            return next;
        }
        if under_way.renewing.is_none() {
            at(Some(shared.ownership.renewal_at()));
        }
        if under_way.upkeep.probing.is_none() {
            at(self.leases.next_probe_at(shared));
        }
        if under_way.fetching.is_none() && Fetch::may_begin(shared) && !self.has_found_all() {
            at(Some(shared.poller.next_at()));
        }
        if shared.in_flight.is_ready() && !shared.pauses.all() {
            at(shared.breaker.pause_end());
        }
        if under_way.upkeep.purging.is_none() {
            at(self.upkeep.next_at(shared));
        }
        next
    }

    fn renewed(&mut self, result: Result<Renewal, StoreError>) -> Result<bool, RelayError> {
        let renewed = self.leases.done(&mut self.shared, result)?;
        if !self.shared.ownership.keeps(PARTITION) {
            self.upkeep.forget(&self.shared);
        }
        if renewed.leaves {
            // The running fetch excludes rows that were dropped with a lost partition. If the
            // partition is acquired again, later messages of the aggregates would look due.
            self.fetch.forget();
        }
        if self.leases.hands_over {
            self.under_way.upkeep.probing = None;
        }
        renewed.outcome?;
        if !renewed.lost.is_empty() {
            self.forget(&renewed.lost);
        }
        Ok(!renewed.lost.is_empty())
    }

    /// Must be called only when no publish is in flight.
    async fn hand_over(&mut self) {
        self.leases.hands_over = false;
        self.abandon().await;
        let shared = &mut self.shared;
        if shared.store.is_failing(Activity::Settling) {
            // The next owner resends published messages.
            self.fetch.forget();
            shared.in_flight.let_go();
            self.under_way.settling = None;
            shared.store.forget_settling();
            shared.store.settle_after = None;
            shared.poller.restart();
        }
    }

    /// Stops publishing: the leases may have expired, or a shutdown has waited long enough.
    async fn overdue(&mut self) {
        self.forget(&[]);
        if self.stopping.is_none() {
            tracing::warn!("leases could not be renewed in time; publishing stops until they are renewed");
            self.shared.ownership.doubt();
        }
        self.abandon().await;
    }

    fn forget(&mut self, lost: &[u16]) {
        self.fetch.forget();
        self.shared.in_flight.forget(lost);
        self.shared.store.forget();
        self.shared.poller.restart();
    }

    async fn abandon(&mut self) {
        if timeout(LEAVE_TIMEOUT, self.relay.publisher.abandon())
            .await
            .is_err()
        {
            tracing::warn!(
                "the broker's connection could not be closed in time; late copies keep their message ids"
            );
        }
    }

    async fn leave(&mut self, unconfirmed: usize) {
        if unconfirmed > 0 {
            self.abandon().await;
        }
        let shared = &self.shared;
        let left = timeout(LEAVE_TIMEOUT, self.relay.store.leave(shared.ownership.owner())).await;
        match left {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(
                error = %describe(&error),
                "leases could not be released; they will expire"
            ),
            Err(_) => tracing::warn!("leases could not be released in time; they will expire"),
        }
        if shared.part.has_table() {
            telemetry::leases(0, Relays::default());
            telemetry::pauses(0);
        }
        self.upkeep.forget(shared);
        shared.health.update(|vitals| *vitals = Default::default());
    }
}

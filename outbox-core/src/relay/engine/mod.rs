//! One run of a relay: a loop that keeps fetching, publishing, settling and the upkeep of leases going, all at once.
//!
//! Nothing is spawned: each activity is a future that the loop polls. There is at most one of each kind, but for up to `window` publishes.
//! So a dropped run is a crash and nothing else, and a simulation sees every step. Invariants: nothing is sent after the leases could have run
//! out, nor while the store takes no verdicts; rows that were fetched before everything was forgotten are thrown away; every call of the store has a time limit.
//!
//! A crash at any await here leaves rows that are pending or waiting, of which some are on the stream already: the next owner sends them again under
//! the same ids, and the broker or the inbox drops the copies. Here is the loop. It starts [`activities`], applies their [`results`], settles verdicts in
//! [`settling`], tells what the store has [`recorded`], and leaves partitions to others in [`handover`].

mod activities;
mod announcing;
mod handover;
mod paused;
mod recorded;
mod results;
mod settling;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use activities::send;
use handover::Unfit;
use recorded::Untold;

use super::config::RelayConfig;
use super::fitness::Checkup;
use super::in_flight::{InFlight, Queued};
use super::outage::Outage;
use super::ownership::{Ownership, Upkeep};
use super::pauses::Pauses;
use super::policy::Breaker;
use super::poller::{Poller, Query};
use super::retention::{self, Purge};
use super::row_size::RowSize;
use super::{Relay, RelayError, RelayReport};
use crate::health::Activity;
use crate::publisher::{PublishError, Publisher, Receipt};
use crate::shutdown::hurry;
use crate::store::{Backlog, Fetched, OutboxStore, OwnerId, Purged, Registration, StoreError, within};
use crate::{telemetry, wake};

const SETTLE_LINGER: Duration = Duration::from_millis(20);
/// How soon lanes are looked at again that a fetch left out because they had enough, or of which a part goes on from the store.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
/// Confirmations are handled this many at a time, so that sending, settling and the upkeep of leases get their turn however many keep coming.
const PUBLISHES_PER_TURN: usize = 32;
/// How long a shutdown waits for the database to take the verdicts, after the last confirmation.
const SETTLE_GRACE: Duration = Duration::from_secs(2);
/// How long a shutdown waits for the leases to be given back, and for the broker's connection to be closed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Purging and counting, which no message waits for, may take this many times longer than other calls.
const UNHURRIED: u32 = 6;

/// A future of one activity, if it is under way.
type Slot<'a, T> = Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

/// Whether a run goes on when everything is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Until it is told to stop; trouble is waited out.
    Run,
    /// Until nothing is due; the first trouble ends it, but for verdicts that the store refuses for their own sake.
    Drain,
}

pub(super) struct Engine<'a, S, P> {
    relay: &'a Relay<S, P>,
    config: &'a RelayConfig,
    mode: Mode,
    rng: fastrand::Rng,
    ownership: Ownership,
    /// What this relay registers.
    registration: Arc<Registration>,
    in_flight: InFlight,
    poller: Poller,
    row_size: RowSize,
    breaker: Breaker,
    broker_outage: Outage,
    pub(super) store_outage: Outage,
    checkup: Checkup,
    /// All partitions go to others, once no publish is on its way any more.
    hands_over: bool,
    purge: Purge,
    /// Since when memory has been full of messages that wait behind a few that are out.
    crowded_since: Option<Instant>,
    backlog_at: Instant,
    /// The gauges show what this relay counted.
    counts_backlog: bool,
    /// What is paused.
    pauses: Pauses,
    /// The store has not released yet all that ended pauses held.
    releases: bool,
    /// Number of known interruptions of the source.
    interruptions: u64,
    /// Raised when everything is forgotten; a fetch of an older one is thrown away.
    generation: u64,
    /// Failures of each activity on the store since its last success.
    store_failures: [u32; Activity::COUNT],
    /// The first of them.
    store_failing_since: [Option<Instant>; Activity::COUNT],
    /// The store takes no verdicts: nothing is settled before this, and nothing sent either until it has taken those that there are.
    settle_after: Option<Instant>,
    /// Settlements in a row in which the store refused a verdict.
    refusals: u32,
    /// Why a drain fails although it went on: the store refused a verdict.
    refusal: Option<StoreError>,
    stopping: Option<Stopping>,
    fetching: Slot<'a, FetchDone>,
    settling: Slot<'a, SettleDone>,
    keeping: Slot<'a, Result<Upkeep, StoreError>>,
    releasing: Slot<'a, Result<(), StoreError>>,
    purging: Slot<'a, Result<Purged, StoreError>>,
    counting: Slot<'a, Result<Backlog, StoreError>>,
    probing: Slot<'a, Result<(), Unfit>>,
    report: RelayReport,
    /// What the report does not say yet.
    untold: Untold,
}

/// Until when a shutdown waits.
#[derive(Debug, Clone, Copy)]
struct Stopping {
    /// For confirmations.
    confirm: Instant,
    /// For anything.
    end: Instant,
}

/// The result of a fetch.
struct FetchDone {
    query: Query,
    number: u64,
    generation: u64,
    /// Nothing was in flight when it began.
    alone: bool,
    /// It left out lanes that had enough messages.
    crowded: bool,
    took: Duration,
    result: Result<Fetched, StoreError>,
}

/// The result of a settlement.
struct SettleDone {
    took: Duration,
    result: Result<usize, StoreError>,
}

/// The result of a publish.
struct PublishDone {
    queued: Queued,
    sent_at: Instant,
    result: Result<Receipt, PublishError>,
}

impl<'a, S: OutboxStore, P: Publisher> Engine<'a, S, P> {
    pub(super) fn new(relay: &'a Relay<S, P>, mode: Mode) -> Self {
        let config = &relay.config;
        let mut rng = config
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self {
            relay,
            config,
            mode,
            ownership: Ownership::new(
                OwnerId::fresh(),
                config.lease_ttl,
                config.store_timeout,
                mode == Mode::Run,
                relay.clocks.clone(),
            )
            .allowing_other_destination(config.allow_other_destination),
            registration: Arc::new(relay.registration()),
            in_flight: InFlight::default(),
            poller: Poller::new(config),
            row_size: RowSize::default(),
            breaker: Breaker::new(config.backoff),
            broker_outage: Outage::default(),
            store_outage: Outage::default(),
            checkup: Checkup::new(config.lease_ttl, config.store_timeout),
            hands_over: false,
            purge: Purge::new(config, &mut rng),
            crowded_since: None,
            backlog_at: Instant::now(),
            counts_backlog: false,
            pauses: Pauses::default(),
            releases: false,
            interruptions: relay.part.interruptions(),
            generation: 0,
            store_failures: [0; Activity::COUNT],
            store_failing_since: [None; Activity::COUNT],
            settle_after: None,
            refusals: 0,
            refusal: None,
            stopping: None,
            fetching: None,
            settling: None,
            keeping: None,
            releasing: None,
            purging: None,
            counting: None,
            probing: None,
            report: RelayReport::default(),
            untold: Untold::default(),
            rng,
        }
    }

    /// Runs until `shutdown` is cancelled, or until everything is drained. Then it gives the leases back.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<RelayReport, RelayError> {
        let (publisher, owner) = (&self.relay.publisher, self.ownership.owner());
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
            if self.must_hand_over() && publishing.is_empty() {
                self.hand_over().await;
            }
            self.start();
            self.launch(publishing.len(), |queued| {
                publishing.push(send(publisher, queued))
            });
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
                    self.stop_at_once();
                    Ok(())
                }
                settle = done(&mut self.settling) => self.settle_done(settle),
                fetch = done(&mut self.fetching) => self.fetch_done(fetch),
                upkeep = done(&mut self.keeping) => match self.upkeep_done(upkeep) {
                    Ok(true) => {
                        publishing.clear();
                        self.abandon().await;
                        Ok(())
                    }
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                },
                // Dropping a publish leaves its outcome unknown: its message stays pending.
                () = sleep_until(confirm_by), if !publishing.is_empty() => {
                    publishing.clear();
                    self.overdue().await;
                    Ok(())
                }
                Some(publish) = publishing.next(), if !publishing.is_empty() => {
                    self.publishes_done(publish, &mut publishing)
                }
                released = done(&mut self.releasing) => self.release_done(released),
                purged = done(&mut self.purging) => self.purge_done(purged),
                counted = done(&mut self.counting) => self.count_done(counted),
                probed = done(&mut self.probing) => {
                    self.probe_done(probed);
                    Ok(())
                }
                () = commits.notified() => {
                    self.poller.wake();
                    Ok(())
                }
                () = sleep_until(next_at) => Ok(()),
            };
            if let Err(error) = step {
                // The first failure says why. A later one, while the run stops, must not prolong that.
                outcome = outcome.and(Err(error));
                if self.stopping.is_none() {
                    self.stop(publishing.len());
                }
            }
        }
        if let Some(refusal) = self.refusal.take() {
            outcome = outcome.and(Err(refusal.into()));
        }
        let unconfirmed = publishing.len();
        drop(publishing);
        self.leave(unconfirmed).await;
        tracing::info!(%owner, report = ?self.report, "relay stopped");
        outcome.map(|()| self.report)
    }

    /// Applies the result of a publish, and those of others that are there already.
    fn publishes_done(
        &mut self,
        first: PublishDone,
        others: &mut FuturesUnordered<impl Future<Output = PublishDone>>,
    ) -> Result<(), RelayError> {
        let mut step = self.publish_done(first);
        for _ in 1..PUBLISHES_PER_TURN {
            let Some(Some(publish)) = others.next().now_or_never() else {
                break;
            };
            step = step.and(self.publish_done(publish));
        }
        step
    }

    /// Reports that the loop turns.
    fn turn(&mut self) {
        let interruptions = self.relay.part.interruptions();
        if std::mem::replace(&mut self.interruptions, interruptions) != interruptions {
            // Another reader may read the messages that are in memory here.
            self.ownership.distrust();
        }
        if let Some(slept) = self.ownership.notice_suspension() {
            tracing::warn!(
                ?slept,
                "the machine was suspended, or its clock set forward; nothing is sent before the leases are renewed"
            );
        }
        self.relay.health.update(|vitals| {
            vitals.turned_at = Some(Instant::now());
            vitals.handed_over = self.checkup.is_ailing() && self.ownership.leases().is_empty();
            vitals.refused = self.in_flight.refused_count();
            if self.in_flight.is_empty() || self.pauses.all() {
                vitals.waiting_since = None;
            } else {
                vitals.waiting_since.get_or_insert_with(Instant::now);
            }
        });
    }

    fn is_over(&self, nothing_on_its_way: bool) -> bool {
        let quiet = nothing_on_its_way && self.in_flight.unsettled() == 0 && self.settling.is_none();
        match self.stopping {
            Some(stopping) => quiet || Instant::now() >= stopping.end,
            None => {
                let nothing_owned = self.ownership.leases().is_empty() && !self.ownership.is_due();
                self.mode == Mode::Drain
                    && quiet
                    && self.keeping.is_none()
                    && !self.releases
                    && (nothing_owned || self.has_found_all())
            }
        }
    }

    /// Whether a drain has nothing left to ask for, as far as is known.
    fn has_found_all(&self) -> bool {
        let has_ended = self.in_flight.is_empty() && self.poller.has_ended();
        self.mode == Mode::Drain && (has_ended || self.pauses.all())
    }

    /// Stops taking on work. What is on its way may still be confirmed and settled.
    fn stop(&mut self, unconfirmed: usize) {
        let at_most = self.config.shutdown_timeout;
        if unconfirmed > 0 {
            tracing::info!(
                unconfirmed,
                ?at_most,
                "relay stops: waits for the broker's confirmations"
            );
        }
        let confirm = Instant::now() + at_most;
        self.stopping = Some(Stopping {
            confirm,
            end: confirm + SETTLE_GRACE,
        });
    }

    /// Whether a shutdown still waits for confirmations.
    fn waits_long(&self) -> bool {
        self.stopping
            .is_some_and(|stopping| stopping.confirm > Instant::now())
    }

    /// Waits for no further confirmation. What is confirmed is still settled.
    fn stop_at_once(&mut self) {
        let confirm = Instant::now();
        self.stopping = Some(Stopping {
            confirm,
            end: confirm + SETTLE_GRACE,
        });
    }

    /// Until when confirmations are waited for.
    fn confirm_by(&self) -> Instant {
        let now = Instant::now();
        let leased = self
            .ownership
            .deadlines()
            .map_or(now, |deadlines| deadlines.confirm);
        self.stopping
            .map_or(leased, |stopping| leased.min(stopping.confirm))
    }

    /// When the loop must turn although no activity has ended.
    fn next_at(&self) -> Instant {
        let mut next = Instant::now() + self.config.poll_max;
        let mut at = |time: Option<Instant>| next = time.map_or(next, |time| next.min(time));
        at(self.stopping.map(|stopping| stopping.end));
        if self.settling.is_none() {
            at(self.settle_after.or_else(|| {
                self.in_flight
                    .unsettled_since()
                    .map(|since| since + SETTLE_LINGER)
            }));
            at(self.retry_at());
        }
        if self.stopping.is_some() {
            return next;
        }
        if self.keeping.is_none() {
            at(Some(self.ownership.upkeep_at()));
        }
        at(self.next_probe_at());
        // A drain that has found everything polls no more, and must not wake up for it.
        if self.may_fetch() && !self.has_found_all() {
            at(Some(self.poller.next_at()));
        }
        if self.in_flight.is_ready() && !self.pauses.all() {
            at(self.breaker.pause_end());
        }
        if self.purging.is_none() && self.ownership.keeps(retention::PARTITION) {
            at(Some(self.purge.next_at()));
        }
        next
    }

    /// Starts the activities that are due, except sending and settling.
    fn start(&mut self) {
        let now = Instant::now();
        self.forget_settling();
        if self.stopping.is_some() {
            return;
        }
        let store = &self.relay.store;
        self.check_up();
        if self.keeping.is_none() && self.ownership.upkeep_at() <= now {
            let upkeep = self.ownership.plan(self.announcement());
            self.untold.begin_upkeep();
            self.keeping = Some(Box::pin(upkeep.run(store)));
        }
        self.give_up_surplus();
        if self.may_fetch()
            && let Some(query) = self.next_query()
        {
            self.fetch(query);
        }
        if !self.ownership.keeps(retention::PARTITION) {
            return;
        }
        let bound = self.config.store_timeout * UNHURRIED;
        if self.purging.is_none()
            && let Some(request) = self.purge.due()
        {
            let purged = within(
                bound,
                "published messages could not be purged",
                store.purge(request),
            );
            self.purging = Some(Box::pin(purged));
        }
        if self.counting.is_none() && self.backlog_at <= now && self.relay.part.has_table() {
            self.backlog_at = now + telemetry::BACKLOG_INTERVAL;
            let counted = within(bound, "the backlog could not be counted", store.backlog());
            self.counting = Some(Box::pin(counted));
        }
    }
}

/// Waits for the activity, if there is one, and clears its slot. Cancel-safe.
async fn done<T>(slot: &mut Slot<'_, T>) -> T {
    match slot {
        Some(activity) => {
            let output = activity.as_mut().await;
            *slot = None;
            output
        }
        None => std::future::pending().await,
    }
}

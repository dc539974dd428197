//! Applies the result of each finished activity to the relay's state.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{CROWDED_PAUSE, Engine, FetchDone, LEAVE_TIMEOUT, Mode, PublishDone};
use crate::health::{Activity, Answers, Trouble};
use crate::publisher::Publisher;
use crate::relay::config::Retention;
use crate::relay::in_flight::Queued;
use crate::relay::outage::tell_outage;
use crate::relay::ownership::Upkeep;
use crate::relay::policy::{self, Outcome};
use crate::relay::poller::Query;
use crate::relay::retention;
use crate::relay::{DeadMessage, RelayError};
use crate::store::{
    Backlog, FetchedRow, OutboxStore, Purged, Relays, Settlement, StoreError, TroubleClass, Verdict, within,
};
use crate::{FailureClass, describe, telemetry};

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    pub(super) fn fetch_done(&mut self, fetch: FetchDone) -> Result<(), RelayError> {
        let FetchDone {
            query,
            number,
            generation,
            ..
        } = fetch;
        telemetry::fetch(fetch.took);
        let activity = match query {
            Query::Pending => Activity::Fetching,
            Query::Waiting => Activity::FetchingWaiting,
        };
        let fetched = match fetch.result {
            Ok(fetched) => fetched,
            Err(error) => {
                let pause = self.store_failed(activity, error)?;
                self.poller.postpone(pause);
                return Ok(());
            }
        };
        self.store_answered(activity);
        self.row_size.learn(&fetched.due);
        if generation != self.generation {
            self.poller.restart();
            return Ok(());
        }
        let any = !fetched.due.is_empty() || !fetched.waits.is_empty();
        let (taken, passed_over) = self.take_fetched(number, fetched.due, fetched.waits);
        let in_vain = taken == 0 && passed_over > 0;
        // A query for what is behind them is not in vain.
        let gets_further = self.row_size.pass_over(query, passed_over, in_vain);
        let more = fetched.more && (!in_vain || gets_further);
        self.poller.end(query, any && !in_vain, more, fetch.alone);
        if query == Query::Pending && !more {
            self.crowded_since = None;
        }
        if query == Query::Waiting && fetch.crowded {
            self.poller.block(CROWDED_PAUSE);
        }
        Ok(())
    }

    /// Takes what a fetch returned of the partitions that are kept. Returns how many rows it took, and how many it passed over because the store refuses the
    /// verdicts that they need.
    fn take_fetched(
        &mut self,
        number: u64,
        due: Vec<FetchedRow>,
        mut waits: Vec<Settlement>,
    ) -> (usize, usize) {
        waits.retain(|settlement| self.ownership.keeps(settlement.partition));
        let mut offered = waits.len();
        let mut taken = self.in_flight.set_aside(waits);
        for row in due {
            if self.ownership.keeps(row.partition) {
                offered += 1;
                taken += usize::from(self.in_flight.accept(number, row));
            }
        }
        (taken, offered - taken)
    }

    pub(super) fn publish_done(&mut self, publish: PublishDone) -> Result<(), RelayError> {
        let PublishDone {
            queued,
            sent_at,
            result,
        } = publish;
        let row = &queued.row;
        let error = match result {
            Ok(receipt) => {
                self.breaker.confirmed();
                self.checkup.proved();
                if let Some(took) = self.broker_outage.ended() {
                    tracing::info!(?took, "the broker confirms again");
                }
                telemetry::published(
                    receipt.duplicate,
                    sent_at.elapsed(),
                    row.age + queued.fetched_at.elapsed(),
                );
                let keep = self.config.retention != Retention::Delete;
                self.in_flight.published(queued, keep, receipt.duplicate);
                self.relay.health.update(|vitals| {
                    vitals.broker_failing = None;
                    vitals.waiting_since = None;
                });
                return Ok(());
            }
            Err(error) => error,
        };
        telemetry::failed(error.class());
        self.report.failed += 1;
        tracing::debug!(row_id = row.row_id, aggregate = %row.aggregate, error = %describe(&error), "message was not taken");
        let alive = self.breaker.is_alive_since(sent_at);
        let outcome = policy::judge(&error, row, alive, self.config, &mut self.rng);
        let pause = match error.class() {
            FailureClass::Unknown if !alive => self.breaker.silent(&mut self.rng),
            FailureClass::Permanent => None,
            _ => self.breaker.refused(row.failures > 0, &mut self.rng),
        };
        let reason = describe(&error);
        if let Some(pause) = pause {
            let is_news = self.broker_outage.failed(false);
            tell_outage!(is_news, %reason, ?pause, "broker trouble, relay pauses");
        }
        if !matches!(
            error.class(),
            FailureClass::Permanent | FailureClass::Unclassified
        ) {
            self.breaker.in_vain();
            self.end_trial();
        }
        if error.class() != FailureClass::Permanent {
            let class = TroubleClass::Broker(error.class());
            self.relay
                .health
                .update(|vitals| Trouble::note(&mut vitals.broker_failing, class, reason.as_str()));
        }
        let mut step = Ok(());
        if self.mode == Mode::Drain && !matches!(outcome, Outcome::Settled(Verdict::Dead { .. })) {
            step = Err(RelayError::Broker(reason));
        }
        match outcome {
            Outcome::Again if self.ownership.keeps(queued.row.partition) => {
                self.in_flight.retry(queued);
            }
            Outcome::Again => self.in_flight.give_back(queued),
            Outcome::Settled(verdict) => self.refused(queued, verdict),
        }
        step
    }

    pub(super) fn unreadable(&mut self, queued: Queued) {
        if let Err(reason) = &queued.row.message {
            let reason = format!("row cannot be read: {reason}");
            let verdict = policy::dead_letter(reason, &queued.row, self.config);
            self.refused(queued, verdict);
        }
    }

    /// A message waits, or is dead-lettered.
    fn refused(&mut self, queued: Queued, verdict: Verdict) {
        let verdict = self.relay.part.verdict(verdict);
        let row = &queued.row;
        match &verdict {
            Verdict::Dead { error, halt } => {
                tracing::error!(row_id = row.row_id, aggregate = %row.aggregate, reason = %error, halted = halt, "message is a dead letter");
                let message = row.message.as_ref().ok();
                let dead = DeadMessage {
                    row_id: row.row_id,
                    id: message.map(|message| message.id),
                    event_type: message.map(|message| message.event_type.clone()),
                    aggregate: row.aggregate.clone(),
                    error: error.clone(),
                    halts: *halt,
                };
                self.in_flight.dead_letter(queued, verdict, dead);
                return;
            }
            Verdict::Blocked { delay, .. } => self.poller.block(*delay),
            Verdict::Published { .. } | Verdict::Waits | Verdict::Paused => {}
        }
        self.in_flight.block(queued, verdict);
    }

    /// Returns true if leases were lost whose messages may be on their way: then everything is forgotten.
    pub(super) fn upkeep_done(&mut self, result: Result<Upkeep, StoreError>) -> Result<bool, RelayError> {
        let mut upkeep = match result {
            Ok(upkeep) => upkeep,
            Err(error) => {
                let pause = self.store_failed(Activity::Keeping, error)?;
                self.ownership.postpone(pause);
                if self.ownership.has_run_out() && self.relay.part.has_table() {
                    telemetry::leases_ran_out();
                }
                return Ok(false);
            }
        };
        let pause = match upkeep.trouble.take() {
            Some(error) => self.store_failed(Activity::Keeping, error)?,
            None => {
                self.store_answered(Activity::Keeping);
                Duration::ZERO
            }
        };
        if let Some(disagreement) = upkeep.disagreement.take() {
            return Err(RelayError::OtherDestination(disagreement));
        }
        self.relay.part.agree();
        let has_renewed = upkeep.renews();
        let finished = std::mem::replace(&mut upkeep.finished, Ok(false));
        let has_read = upkeep.pauses.is_some();
        if let Some(pauses) = upkeep.pauses.take() {
            self.pauses_read(pauses);
        }
        let change = self.ownership.apply(upkeep);
        self.ownership.postpone(pause);
        let owned = self.ownership.leases().len();
        if self.relay.part.has_table() {
            telemetry::leases(owned, self.ownership.relays());
        }
        if !self.ownership.keeps(retention::PARTITION) {
            self.forget_backlog();
        }
        if change.taken > 0 {
            tracing::info!(partitions = change.taken, owned, "leases acquired");
            self.poller.restart();
        }
        if !change.leaving.is_empty() {
            // A fetch under way left out the rows that are dropped here: if such a partition came back before its answer, their successors would seem due.
            self.generation += 1;
            if self.ownership.hands_over() {
                self.hands_over = true;
                self.probing = None;
            }
        }
        for partition in change.leaving {
            self.in_flight.drop_partition(partition);
        }
        if has_renewed {
            if self.relay.part.has_table() {
                telemetry::renewed();
            }
            self.leases_proved();
        }
        if change.lost.is_empty() {
            return match has_read {
                true => self.pauses_finished(finished).map(|()| false),
                false => Ok(false),
            };
        }
        // A drain asks once more.
        self.releases |= finished.unwrap_or(true);
        let lost = change.lost.len();
        if self.relay.part.has_table() {
            telemetry::leases_lost(lost);
            tracing::warn!(
                lost,
                "leases were lost; the relay was paused or the database away"
            );
        } else {
            tracing::info!("the log is no longer read: the session has ended, or the log was dropped");
        }
        self.forget(&change.lost);
        Ok(true)
    }

    /// Gives surplus partitions back, once nothing of them is on its way.
    pub(super) fn give_up_surplus(&mut self) {
        if self.releasing.is_some() || self.hands_over {
            return;
        }
        let free: Vec<u16> = self
            .ownership
            .leaving()
            .filter(|partition| !self.in_flight.holds(*partition))
            .collect();
        if free.is_empty() {
            return;
        }
        let leases = self.ownership.give_back(&free);
        if self.ownership.leases().is_empty() {
            self.checkup.handed_over();
        }
        let (store, owner) = (&self.relay.store, self.ownership.owner());
        tracing::info!(partitions = free.len(), "leases given back to share the work");
        let bound = self.config.store_timeout;
        self.releasing = Some(Box::pin(async move {
            within(
                bound,
                "leases could not be released",
                store.release(owner, &leases),
            )
            .await
        }));
    }

    pub(super) fn release_done(&mut self, released: Result<(), StoreError>) -> Result<(), RelayError> {
        if self.ownership.leases().is_empty() {
            self.checkup.handed_over();
        }
        if let Err(error) = released {
            tracing::warn!(
                error = %describe(&error),
                "leases could not be released; they run out"
            );
        }
        Ok(())
    }

    pub(super) fn purge_done(&mut self, purged: Result<Purged, StoreError>) -> Result<(), RelayError> {
        match purged {
            Ok(purged) => {
                telemetry::purged(purged.deleted);
                self.purge.done(purged, &mut self.rng);
            }
            Err(error) => {
                tracing::warn!(
                    error = %describe(&error),
                    "published messages could not be purged"
                );
            }
        }
        Ok(())
    }

    pub(super) fn count_done(&mut self, counted: Result<Backlog, StoreError>) -> Result<(), RelayError> {
        match counted {
            Ok(backlog) => {
                telemetry::backlog(&backlog);
                self.counts_backlog = true;
                self.relay
                    .health
                    .update(|vitals| vitals.halted = backlog.halted_aggregates);
            }
            Err(error) => {
                tracing::warn!(error = %describe(&error), "the backlog could not be counted");
                if self.counts_backlog {
                    telemetry::forget_backlog();
                }
            }
        }
        Ok(())
    }

    /// Another relay counts the backlog.
    fn forget_backlog(&mut self) {
        if std::mem::take(&mut self.counts_backlog) {
            telemetry::forget_backlog();
            self.relay.health.update(|vitals| vitals.halted = 0);
        }
    }

    /// The leases may have run out with messages on their way, or a shutdown has waited for them long enough.
    pub(super) async fn overdue(&mut self) {
        self.forget(&[]);
        if self.stopping.is_none() {
            tracing::warn!("leases could not be renewed in time; publishing stops until they are");
            self.ownership.doubt();
        }
        self.abandon().await;
    }

    /// Throws away the messages in memory, all of which are in the store. The leases of these partitions are lost.
    fn forget(&mut self, lost: &[u16]) {
        self.generation += 1;
        self.in_flight.forget(lost);
        // A relay that owns nothing has nothing to fail at.
        self.store_failing_since = Default::default();
        self.poller.restart();
    }

    /// Keeps messages that are on their way from arriving later, as far as possible.
    pub(super) async fn abandon(&mut self) {
        if timeout(LEAVE_TIMEOUT, self.relay.publisher.abandon())
            .await
            .is_err()
        {
            tracing::warn!(
                "the broker's connection could not be closed in time; late copies carry their ids"
            );
        }
    }

    /// Gives the leases back, at the end.
    pub(super) async fn leave(&mut self, unconfirmed: usize) {
        if unconfirmed > 0 {
            self.abandon().await;
        }
        let left = timeout(LEAVE_TIMEOUT, self.relay.store.leave(self.ownership.owner())).await;
        match left {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(
                error = %describe(&error),
                "leases could not be released; they run out"
            ),
            Err(_) => tracing::warn!("leases could not be released in time; they run out"),
        }
        if self.relay.part.has_table() {
            telemetry::leases(0, Relays::default());
            telemetry::pauses(0);
        }
        self.forget_backlog();
        self.relay.health.update(|vitals| *vitals = Default::default());
    }

    /// Notes that the store failed; returns how long to wait before the next try.
    pub(super) fn store_failed(
        &mut self,
        activity: Activity,
        error: StoreError,
    ) -> Result<Duration, RelayError> {
        if self.mode == Mode::Drain {
            return Err(error.into());
        }
        let failures = self.store_failures[activity as usize].saturating_add(1);
        self.store_failures[activity as usize] = failures;
        self.store_failing_since[activity as usize].get_or_insert_with(Instant::now);
        if activity != Activity::Keeping {
            self.end_trial();
        }
        let pause = self.config.backoff.delay(failures, &mut self.rng);
        let reason = describe(&error);
        let needs_somebody = !matches!(error, StoreError::Database { .. } | StoreError::Silent { .. });
        let is_news = self.store_outage.failed(needs_somebody);
        tell_outage!(is_news, activity = activity.as_str(), %reason, ?pause, "outbox store failed, relay pauses");
        telemetry::store_failed(activity);
        self.relay.health.update(|vitals| {
            let failing = &mut vitals.store[activity as usize].failing;
            Trouble::note(failing, TroubleClass::Database, reason);
        });
        Ok(pause)
    }

    pub(super) fn store_answered(&mut self, activity: Activity) {
        self.store_failures[activity as usize] = 0;
        self.store_failing_since[activity as usize] = None;
        if self.store_failing_since.iter().all(Option::is_none)
            && let Some(took) = self.store_outage.ended()
        {
            tracing::info!(?took, "the outbox store answers again");
        }
        self.relay.health.update(|vitals| {
            vitals.store[activity as usize] = Answers {
                last: Some(Instant::now()),
                failing: None,
            };
        });
    }
}

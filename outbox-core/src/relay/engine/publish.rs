//! Sends messages and applies the broker's answers.
//!
//! Invariants: nothing is sent after the leases may have expired, or while the store rejects the
//! results of publishes. At most four batches are sent without a stored result. A pause sets each
//! message aside once, so scans stay short.

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Mode, Shared};
use crate::health::Trouble;
use crate::publisher::{FailureClass, PublishError, Publisher, Receipt};
use crate::relay::config::Retention;
use crate::relay::in_flight::Queued;
use crate::relay::outage::{Outage, tell_outage};
use crate::relay::policy::{self, Outcome};
use crate::relay::{DeadMessage, RelayError};
use crate::store::{TroubleClass, Verdict};
use crate::{describe, telemetry};

#[derive(Default)]
pub(super) struct Publish {
    outage: Outage,
    pub(super) failed: u64,
}

pub(super) struct PublishDone {
    pub(super) queued: Queued,
    pub(super) sent_at: Instant,
    pub(super) result: Result<Receipt, PublishError>,
}

pub(super) async fn send<P: Publisher>(publisher: &P, queued: Queued) -> PublishDone {
    let sent_at = Instant::now();
    let result = match &queued.row.message {
        Ok(message) => {
            let span = telemetry::publish_span(message);
            publisher.publish(message).instrument(span).await
        }
        Err(reason) => Err(PublishError::new(FailureClass::Permanent, reason.to_string())),
    };
    PublishDone {
        queued,
        sent_at,
        result,
    }
}

impl Publish {
    /// Returns true if no message is left to send, although less than half of the window of
    /// unconfirmed messages is in use.
    pub(super) fn step(
        shared: &mut Shared<'_>,
        on_their_way: usize,
        mut send: impl FnMut(Queued),
    ) -> Option<bool> {
        let deadlines = shared.ownership.deadlines()?;
        let window = shared.breaker.window(shared.config.window);
        let mut room = window.saturating_sub(on_their_way);
        if !shared.may_send() || shared.pauses.all() || Instant::now() >= deadlines.start {
            return None;
        }
        while room > 0 {
            let Some(queued) = shared.in_flight.next() else {
                return Some(room > window / 2);
            };
            if shared.pauses.holds(&queued.row.aggregate) {
                let verdict = shared.part.verdict(Verdict::Paused);
                shared.in_flight.block(queued, verdict);
                continue;
            }
            match &queued.row.message {
                Ok(_) => {
                    room -= 1;
                    send(queued);
                }
                Err(reason) => {
                    let reason = format!("row cannot be read: {reason}");
                    let verdict = policy::dead_letter(reason, &queued.row, shared.config);
                    refuse(shared, queued, verdict);
                }
            }
        }
        None
    }

    pub(super) fn done(&mut self, shared: &mut Shared<'_>, publish: PublishDone) -> Result<(), RelayError> {
        let PublishDone {
            queued,
            sent_at,
            result,
        } = publish;
        match result {
            Ok(receipt) => {
                self.confirmed(shared, queued, sent_at, &receipt);
                Ok(())
            }
            Err(error) => self.not_confirmed(shared, queued, sent_at, &error),
        }
    }

    fn confirmed(&mut self, shared: &mut Shared<'_>, queued: Queued, sent_at: Instant, receipt: &Receipt) {
        shared.breaker.confirmed();
        shared.checkup.proved();
        if let Some(took) = self.outage.ended() {
            tracing::info!(?took, "the broker confirms again");
        }
        let age = queued.row.age + queued.fetched_at.elapsed();
        telemetry::published(receipt.duplicate, sent_at.elapsed(), age);
        let keep = shared.config.retention != Retention::Delete;
        shared.in_flight.published(queued, keep, receipt.duplicate);
        shared.health.update(|vitals| {
            vitals.broker_failing = None;
            vitals.waiting_since = None;
        });
    }

    fn not_confirmed(
        &mut self,
        shared: &mut Shared<'_>,
        queued: Queued,
        sent_at: Instant,
        error: &PublishError,
    ) -> Result<(), RelayError> {
        let (row, class, reason) = (&queued.row, error.class(), describe(error));
        telemetry::failed(class);
        self.failed += 1;
        tracing::debug!(row_id = row.row_id, aggregate = %row.aggregate, error = %reason, "message was not accepted");
        let alive = shared.breaker.is_alive_since(sent_at);
        let outcome = policy::judge(error, row, alive, shared.config, &mut shared.rng);
        let pause = match class {
            FailureClass::Unknown if !alive => shared.breaker.silent(&mut shared.rng),
            FailureClass::Permanent => None,
            _ => shared.breaker.refused(row.failures > 0, &mut shared.rng),
        };
        if let Some(pause) = pause {
            let is_news = self.outage.failed(false, class.as_str());
            tell_outage!(is_news, %reason, ?pause, "broker failed; relay backs off");
        }
        if !matches!(
            class,
            FailureClass::Permanent | FailureClass::Uncaptured | FailureClass::Unclassified
        ) {
            shared.breaker.in_vain();
            shared.end_trial();
        }
        if class != FailureClass::Permanent {
            let class = TroubleClass::Broker(class);
            shared
                .health
                .update(|vitals| Trouble::note(&mut vitals.broker_failing, class, reason.as_str()));
        }
        let is_dead = matches!(outcome, Outcome::Settled(Verdict::Dead { .. }));
        match outcome {
            Outcome::Again if shared.ownership.keeps(queued.row.partition) => shared.in_flight.retry(queued),
            Outcome::Again => shared.in_flight.give_back(queued),
            Outcome::Settled(verdict) => refuse(shared, queued, verdict),
        }
        match shared.mode {
            Mode::Drain if !is_dead => Err(RelayError::Broker(reason)),
            _ => Ok(()),
        }
    }
}

fn refuse(shared: &mut Shared<'_>, queued: Queued, verdict: Verdict) {
    let verdict = shared.part.verdict(verdict);
    let row = &queued.row;
    match &verdict {
        Verdict::Dead { error, halt } => {
            tracing::error!(row_id = row.row_id, aggregate = %row.aggregate, reason = %error, halted = halt, "message became a dead letter");
            let message = row.message.as_ref().ok();
            let dead = DeadMessage {
                row_id: row.row_id,
                id: message.map(|message| message.id),
                event_type: message.map(|message| message.event_type.clone()),
                aggregate: row.aggregate.clone(),
                error: error.clone(),
                halts: *halt,
            };
            shared.in_flight.dead_letter(queued, verdict, dead);
            return;
        }
        Verdict::Blocked { delay, .. } => shared.poller.block(*delay),
        Verdict::Published { .. } | Verdict::Waits | Verdict::Paused => {}
    }
    shared.in_flight.block(queued, verdict);
}

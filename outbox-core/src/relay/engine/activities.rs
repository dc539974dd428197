//! Starts fetching and sending, as far as there is room for them.
//!
//! Invariant: memory is bounded here. At most one and a half batches are fetched and not sent, and as much in bytes; at most four batches are sent
//! and not settled.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::settling::SETTLE_BATCH;
use super::{CROWDED_PAUSE, Engine, FetchDone, Mode, PublishDone};
use crate::publisher::{FailureClass, PublishError, Publisher};
use crate::relay::in_flight::Queued;
use crate::relay::poller::Query;
use crate::store::{FetchRequest, OutboxStore, WaitingRequest, within};
use crate::telemetry;

/// Messages of one blocked aggregate per fetch. Evaluated at compile time.
const PER_AGGREGATE: NonZeroU32 = NonZeroU32::new(256).unwrap();
/// While other aggregates may starve, a lane with more messages than this in memory goes on from the store.
const LANE_MAX: usize = 512;
/// Only after this long, since each message that goes on from the store is written twice more, and a backlog of one aggregate is often
/// short. Other aggregates wait at most this much longer for it.
const CROWDED_MAX: Duration = Duration::from_secs(2);
/// This many messages of such a lane stay in memory; when there are fewer, more are fetched.
const LANE_KEPT: usize = 128;

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    pub(super) fn may_fetch(&self) -> bool {
        let leased = |now| {
            self.ownership
                .deadlines()
                .is_some_and(|deadlines| now < deadlines.start)
        };
        self.fetching.is_none()
            && self.has_room()
            && !self.pauses.all()
            && !self.in_flight.is_setting_aside()
            && leased(Instant::now())
    }

    /// Whether there is room for more. Memory is bounded by this: one and a half batches, and as much in bytes.
    pub(super) fn has_room(&self) -> bool {
        let batch = self.config.batch.get() as usize;
        self.in_flight.queued() <= batch / 2
            && self.in_flight.bytes() <= self.config.buffer_bytes / 2
            && self.may_send()
    }

    /// Whether verdicts reach the store. Sending more while they do not would only make more copies.
    pub(super) fn may_send(&self) -> bool {
        self.settle_after.is_none()
            && self.in_flight.not_taken() + self.in_flight.refused_count()
                < 4 * self.config.batch.get().max(SETTLE_BATCH as u32) as usize
    }

    /// The query to run now. A drain does not wait between the last message and the proof that there are no more.
    pub(super) fn next_query(&self) -> Option<Query> {
        match self.mode {
            Mode::Drain if self.in_flight.is_empty() => self.poller.not_ended(),
            _ => self.poller.due(self.breaker.is_refusing()),
        }
    }

    pub(super) fn fetch(&mut self, query: Query) {
        let alone = self.in_flight.is_empty();
        let (number, in_flight) = self.in_flight.begin_fetch();
        self.poller.begin(query);
        let excluding = match query {
            Query::Pending => Vec::new(),
            Query::Waiting => self.in_flight.crowded(LANE_KEPT),
        };
        let (crowded, generation) = (!excluding.is_empty(), self.generation);
        let (store, leases) = (&self.relay.store, self.ownership.fetchable());
        let (limit, bytes) = self
            .row_size
            .limit(query, self.config.batch, self.config.buffer_bytes);
        let bound = self.config.store_timeout;
        self.fetching = Some(Box::pin(async move {
            let began = Instant::now();
            let result = match query {
                Query::Pending => {
                    let request = FetchRequest {
                        leases: &leases,
                        limit,
                        bytes,
                        in_flight: &in_flight,
                    };
                    within(
                        bound,
                        "pending messages could not be fetched",
                        store.fetch(request),
                    )
                    .await
                }
                Query::Waiting => {
                    let request = WaitingRequest {
                        leases: &leases,
                        limit,
                        per_aggregate: PER_AGGREGATE,
                        bytes,
                        in_flight: &in_flight,
                        excluding: &excluding,
                    };
                    within(
                        bound,
                        "waiting messages could not be fetched",
                        store.fetch_waiting(request),
                    )
                    .await
                }
            };
            FetchDone {
                query,
                number,
                generation,
                alone,
                crowded,
                took: began.elapsed(),
                result,
            }
        }));
    }

    /// Sends the messages that may be sent now.
    pub(super) fn launch(&mut self, on_their_way: usize, mut send: impl FnMut(Queued)) {
        let Some(deadlines) = self.ownership.deadlines() else {
            return;
        };
        let window = self.breaker.window(self.config.window);
        let mut room = window.saturating_sub(on_their_way);
        let may_send = self.may_send() && !self.pauses.all();
        if self.stopping.is_some() || self.hands_over || !may_send || Instant::now() >= deadlines.start {
            return;
        }
        while room > 0 {
            let Some(queued) = self.in_flight.next() else {
                // Nobody starves while half of the window is in use.
                if room <= window / 2 {
                    self.crowded_since = None;
                } else {
                    self.make_room();
                }
                return;
            };
            if self.pauses.holds(&queued.row.aggregate) {
                self.pause(queued);
            } else if queued.row.message.is_ok() {
                room -= 1;
                send(queued);
            } else {
                self.unreadable(queued);
            }
        }
    }

    /// No message may be sent, since all in memory wait behind others that are on their way. If they are of few aggregates, the longest lane goes
    /// on from the store, and its memory is free for other aggregates.
    fn make_room(&mut self) {
        if self.has_room() || self.crowded_since.get_or_insert_with(Instant::now).elapsed() < CROWDED_MAX {
            return;
        }
        if self.in_flight.shorten(LANE_MAX, LANE_KEPT) {
            self.poller.block(CROWDED_PAUSE);
        }
    }
}

/// Publishes one message.
pub(super) async fn send<P: Publisher>(publisher: &P, queued: Queued) -> PublishDone {
    let sent_at = Instant::now();
    let result = match &queued.row.message {
        Ok(message) => {
            let span = telemetry::publish_span(message);
            publisher.publish(message).instrument(span).await
        }
        // Not sent: the caller has looked.
        Err(reason) => Err(PublishError::new(FailureClass::Permanent, reason.to_string())),
    };
    PublishDone {
        queued,
        sent_at,
        result,
    }
}

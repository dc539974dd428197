//! Keeps what is paused from being sent.
//!
//! Invariants: a pause of everything stops fetching and sending, and touches no row. A pause of an aggregate type sets aside what the relay meets of that type,
//! each message once, so that the scan of the pending messages is as short as ever. A crash leaves some rows waiting and others pending, of which the next
//! owner sets aside the pending ones.

use super::{Engine, Mode};
use crate::publisher::Publisher;
use crate::relay::RelayError;
use crate::relay::in_flight::Queued;
use crate::relay::pauses::Pauses;
use crate::store::{OutboxStore, Pause, StoreError, Verdict};
use crate::{describe, telemetry};

impl<S: OutboxStore, P: Publisher> Engine<'_, S, P> {
    /// The pauses were read.
    pub(super) fn pauses_read(&mut self, read: Vec<Pause>) {
        let pauses = Pauses::new(read);
        if pauses.differs(&self.pauses) {
            match pauses.count() {
                0 => tracing::info!("publishing is no longer paused"),
                _ => tracing::warn!(pauses = ?pauses.reasons(), "publishing is paused"),
            }
            // What was held may be due.
            self.poller.restart();
        }
        if self.relay.part.has_table() {
            telemetry::pauses(pauses.count());
        }
        self.relay
            .health
            .update(|vitals| vitals.pauses = pauses.reasons());
        self.pauses = pauses;
    }

    /// The store was asked to release what ended pauses held, if there are any. A drain ends with its first trouble, and not before all of it is released.
    pub(super) fn pauses_finished(&mut self, finished: Result<bool, StoreError>) -> Result<(), RelayError> {
        let more = match finished {
            Ok(more) => more,
            Err(error) if self.mode == Mode::Drain => return Err(error.into()),
            // It holds up what was paused, and nothing else: the leases and everything that is not paused go on.
            Err(error) => {
                tracing::warn!(error = %describe(&error), "a pause has ended, and what it held could not be released; it is tried again with the next renewal");
                return Ok(());
            }
        };
        if more || self.releases {
            // What was released is due.
            self.poller.restart();
        }
        if more {
            self.ownership.renew_now();
        }
        self.releases = more;
        Ok(())
    }

    /// The message's aggregate type is paused, so the message waits, and the messages behind it as well.
    pub(super) fn pause(&mut self, queued: Queued) {
        let verdict = self.relay.part.verdict(Verdict::Paused);
        self.in_flight.block(queued, verdict);
    }
}

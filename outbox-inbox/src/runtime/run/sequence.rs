//! Order across processes (strategy `sequence`).
//!
//! Invariant: a message waits for a failing predecessor until the predecessor's attempts end. A
//! message waits for missing predecessors for a bounded time; then the gap is reported and the
//! message runs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_core::{Message, SubscriberError};
use tokio::time::Instant;
use uuid::Uuid;

use super::attempt::Attempt;
use crate::database::roll_back;
use crate::dedup::claim::Claimant;
use crate::dedup::sequence::Gaps;
use crate::dedup::{Outcome, Retry};
use crate::handler::{Registration, Strategy, describe};
use crate::panics::Panicked;
use crate::runtime::conclude::duplicate;
use crate::runtime::consumer::Consumer;
use crate::runtime::message::{Early, RoutedMessage};
use crate::telemetry;

/// Delay before an early message is claimed again. Usually
/// [`crate::runtime::schedule::predecessors`] ends the wait much sooner.
const CLAIM_AGAIN: Duration = Duration::from_secs(1);

/// Pause after the broker rejected a query for predecessors. If the permission is missing, each
/// query would block a slot for a second.
const ASK_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct LateBeginnings(Mutex<Option<Instant>>);

impl LateBeginnings {
    fn may_ask(&self) -> bool {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_none_or(|at| at <= Instant::now())
    }

    fn pause(&self) {
        let until = Instant::now() + ASK_PAUSE;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }
}

impl<'a> Attempt<'a> {
    pub(crate) fn keeper_of_sequence(&self) -> Option<Claimant<'a>> {
        self.consumer.keeper_of_sequence(self.message, self.source)
    }

    /// Returns `None` if it is the message's turn. A message before its turn would make earlier
    /// messages late.
    pub(crate) async fn wait_for_turn(&mut self) -> Option<Outcome> {
        if self.routed.letter.is_some() {
            return None;
        }
        let keeper = self.keeper_of_sequence()?;
        let claimed = async {
            let _turn = self.consumer.shared.database.turn().await;
            let tx = self.consumer.shared.database.begin().await?;
            let claim = keeper.claim(&tx, false, self.gaps()).await;
            roll_back(tx).await;
            claim
        };
        match claimed.await {
            Ok(Outcome::Early { expected, failing }) => Some(self.early(expected, failing)),
            Ok(Outcome::Duplicate) => Some(duplicate::conclude(self).await),
            Ok(_) => None,
            Err(error) => Some(self.later(&describe(&error))),
        }
    }

    /// `expected`: first missing sequence. `failing`: whether a missing message is being retried.
    pub(crate) fn early(&mut self, expected: u64, failing: bool) -> Outcome {
        let now = Instant::now();
        let wait = self.consumer.gap_wait(self.routed.handler());
        let resumed_at = self.consumer.pause.resumed_at();
        let waits = &mut self.routed.memory.early;
        let is_news = waits.is_none_or(|early| early.expected != expected);
        if failing || is_news {
            *waits = Some(Early {
                expected,
                since: now,
                expired: false,
                asked: failing,
            });
        }
        if let Some(early) = waits
            && !failing
            && !early.expired
            && early.since.max(resumed_at.unwrap_or(early.since)) + wait <= now
        {
            early.expired = true;
            tracing::error!(
                consumer = self.consumer.name,
                aggregate = %self.message.aggregate,
                expected,
                sequence = self.message.sequence,
                "messages of the aggregate are missing; the wait for them has ended"
            );
            telemetry::count(telemetry::GAPS, self.consumer.name, &self.message.event_type);
            return Outcome::postponed(Duration::ZERO);
        }
        Outcome::Retry {
            after: match wait {
                Duration::ZERO => CLAIM_AGAIN / 4,
                _ => CLAIM_AGAIN.min(wait / 4),
            },
            reason: Retry::Early {
                last: (is_news && !failing).then(|| expected.saturating_sub(1)),
            },
        }
    }

    pub(crate) fn gaps(&self) -> Gaps {
        self.consumer.gaps(self.routed, self.routed.handler())
    }
}

impl Consumer {
    pub(crate) fn keeper_of_sequence<'a>(
        &'a self,
        message: &'a Message,
        source: &'a str,
    ) -> Option<Claimant<'a>> {
        let strategy = Strategy::Sequence { gap: None };
        (self.sequenced && message.sequence.is_some())
            .then(|| self.claimant(message, source, strategy, message.event_id.as_uuid()))
    }

    pub(crate) fn claimant<'a>(
        &'a self,
        message: &'a Message,
        source: &'a str,
        strategy: Strategy,
        id: Uuid,
    ) -> Claimant<'a> {
        Claimant {
            sql: &self.shared.sql,
            consumer: self.name,
            message,
            source,
            strategy,
            id,
        }
    }

    pub(crate) fn may_begin_late(&self, outcome: &Outcome, routed: &RoutedMessage) -> bool {
        let waits = |early: Early| early.expected == 1 && !early.expired && !early.asked;
        let is_early = matches!(outcome.retry(), Some(Retry::Early { .. }));
        is_early && routed.memory.early.is_some_and(waits) && self.late_beginnings.may_ask()
    }

    /// Whether the aggregate begins with this message on the stream. An earlier message in another
    /// process is then late and dead-lettered.
    pub(crate) fn begins_late(
        &self,
        has_predecessors: Result<Result<bool, SubscriberError>, Panicked>,
        routed: &mut RoutedMessage,
    ) -> bool {
        let error = match has_predecessors {
            Ok(Ok(found)) => {
                if let Some(early) = &mut routed.memory.early {
                    early.asked = true;
                    early.expired = !found;
                }
                return !found;
            }
            Ok(Err(error)) => describe(&error),
            Err(panic) => panic.to_string(),
        };
        self.late_beginnings.pause();
        tracing::warn!(
            consumer = self.name,
            error,
            pause = ?ASK_PAUSE,
            "first message of an aggregate may still be on the stream, so later messages wait"
        );
        false
    }

    fn gap_wait(&self, handler: Option<&Registration>) -> Duration {
        match handler.map(|handler| handler.options.strategy) {
            Some(Strategy::Sequence { gap: Some(gap) }) => gap,
            None if !self.keeps_sequences() => Duration::ZERO,
            _ => 2 * self.shared.config.ack_wait,
        }
    }

    pub(crate) fn gaps(&self, routed: &RoutedMessage, handler: Option<&Registration>) -> Gaps {
        if self.gap_wait(handler).is_zero() {
            return Gaps::Ignore;
        }
        match routed.memory.early {
            Some(early) if early.expired => Gaps::Accept,
            _ => Gaps::Wait,
        }
    }
}

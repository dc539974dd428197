//! Publishes one batch, pipelined.
//!
//! Invariants: at most `window` messages are unconfirmed; none starts after its deadline; the batch never outlives
//! the leases. Nothing here touches the database: the caller settles what is returned.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::config::RelayConfig;
use super::ownership::Deadlines;
use super::policy;
use super::schedule::{Key, Schedule};
use crate::message::Aggregate;
use crate::publisher::{FailureClass, PublishError, Publisher, Receipt};
use crate::store::{FetchedRow, Settlement, Verdict};

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) settlements: Vec<Settlement>,
    pub(super) published: u64,
    pub(super) duplicates: u64,
    pub(super) parked: u64,
    /// What was not taken for now; the aggregates back off.
    pub(super) failures: Vec<Failure>,
}

/// A message that was not taken for now.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) aggregate: Aggregate,
    pub(super) class: FailureClass,
    pub(super) reason: String,
}

/// Publishes as much of the batch as the deadlines allow. What was not started, not confirmed or refused for now is simply
/// missing from the settlements and stays pending.
pub(super) async fn publish<P: Publisher>(
    publisher: &P,
    rows: Vec<FetchedRow>,
    config: &RelayConfig,
    deadlines: Deadlines,
    shutdown: &CancellationToken,
) -> Outcome {
    let mut schedule = Schedule::new(rows);
    let mut outcome = Outcome::default();
    let mut in_flight = FuturesUnordered::new();
    let mut confirm_by = deadlines.confirm;
    let mut draining = false;
    loop {
        while in_flight.len() < config.window && !shutdown.is_cancelled() && Instant::now() < deadlines.start
        {
            let Some((key, row)) = schedule.next() else { break };
            if row.message.is_ok() {
                in_flight.push(send(publisher, key, row));
            } else {
                outcome.unreadable(&mut schedule, key, row, config);
            }
        }
        if in_flight.is_empty() {
            return outcome;
        }
        tokio::select! {
            biased;
            Some((key, row, result)) = in_flight.next() => {
                outcome.sent(&mut schedule, key, row, result, config);
            }
            // Dropping what is in flight leaves its outcome unknown, which is what staying pending means.
            () = sleep_until(confirm_by) => return outcome,
            () = shutdown.cancelled(), if !draining => {
                draining = true;
                confirm_by = confirm_by.min(Instant::now() + config.shutdown_timeout);
            }
        }
    }
}

async fn send<P: Publisher>(
    publisher: &P,
    key: Key,
    row: FetchedRow,
) -> (Key, FetchedRow, Option<Result<Receipt, PublishError>>) {
    let result = match &row.message {
        Ok(message) => Some(publisher.publish(message).await),
        Err(_) => None,
    };
    (key, row, result)
}

impl Outcome {
    fn sent(
        &mut self,
        schedule: &mut Schedule,
        key: Key,
        row: FetchedRow,
        result: Option<Result<Receipt, PublishError>>,
        config: &RelayConfig,
    ) {
        match result {
            Some(Ok(receipt)) => {
                self.published += 1;
                self.duplicates += u64::from(receipt.duplicate);
                self.settle(&row, Verdict::Published);
                schedule.proceed(key);
            }
            Some(Err(error)) => {
                tracing::debug!(seq = row.seq, aggregate = %row.aggregate, %error, "message was not taken");
                let verdict = policy::verdict(&error, row.attempts, config);
                self.refused(
                    schedule,
                    key,
                    row,
                    error.class(),
                    policy::describe(&error),
                    verdict,
                );
            }
            None => self.unreadable(schedule, key, row, config),
        }
    }

    fn unreadable(&mut self, schedule: &mut Schedule, key: Key, row: FetchedRow, config: &RelayConfig) {
        let reason = match &row.message {
            Err(reason) => format!("row cannot be read: {reason}"),
            Ok(_) => return,
        };
        let verdict = policy::park(reason.clone(), config);
        self.refused(schedule, key, row, FailureClass::Permanent, reason, Some(verdict));
    }

    fn refused(
        &mut self,
        schedule: &mut Schedule,
        key: Key,
        row: FetchedRow,
        class: FailureClass,
        reason: String,
        verdict: Option<Verdict>,
    ) {
        let parked = matches!(verdict, Some(Verdict::Parked { .. }));
        let goes_on = matches!(verdict, Some(Verdict::Parked { halt: false, .. }));
        if parked {
            self.parked += 1;
            tracing::error!(seq = row.seq, aggregate = %row.aggregate, %reason, halted = !goes_on, "message parked");
        }
        if let Some(verdict) = verdict {
            self.settle(&row, verdict);
        }
        if goes_on {
            schedule.proceed(key);
        } else {
            schedule.stop(&key);
        }
        if !parked {
            self.failures.push(Failure {
                aggregate: row.aggregate,
                class,
                reason,
            });
        }
    }

    fn settle(&mut self, row: &FetchedRow, verdict: Verdict) {
        self.settlements.push(Settlement {
            seq: row.seq,
            partition: row.partition,
            verdict,
        });
    }
}

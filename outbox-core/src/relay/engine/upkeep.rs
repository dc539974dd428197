//! Purges expired messages and deduplication keys in small steps, and counts the backlog.
//!
//! Invariants: only the owner of partition 0 purges and counts. Dead, pending and waiting messages
//! are never deleted.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use crate::message::MessageId;
use crate::relay::config::{RelayConfig, Retention};
use crate::store::{Backlog, PurgeRequest, Purged, StoreError};
use crate::{describe, telemetry};

const BATCH: NonZeroU32 = NonZeroU32::new(1000).unwrap();
/// Pause between purge statements: at most 20,000 messages a second.
const PAUSE: Duration = Duration::from_millis(50);
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) const PARTITION: u16 = 0;

pub(super) struct Upkeep {
    purge: Purge,
    count_at: Instant,
    has_counted: bool,
}

impl Upkeep {
    pub(super) fn new(shared: &mut Shared<'_>) -> Self {
        Self {
            purge: Purge::new(shared.config, &mut shared.rng),
            count_at: Instant::now(),
            has_counted: false,
        }
    }

    pub(super) fn next_at(&self, shared: &Shared<'_>) -> Option<Instant> {
        shared.ownership.keeps(PARTITION).then(|| self.purge.next_at())
    }

    pub(super) fn step(&mut self, shared: &Shared<'_>) -> Option<PurgeRequest> {
        match shared.ownership.keeps(PARTITION) {
            true => self.purge.due(),
            false => None,
        }
    }

    pub(super) fn purged(&mut self, shared: &mut Shared<'_>, purged: Result<Purged, StoreError>) {
        match purged {
            Ok(purged) => {
                telemetry::purged(purged.deleted);
                self.purge.done(purged, &mut shared.rng);
            }
            Err(error) => {
                tracing::warn!(error = %describe(&error), "published messages could not be purged");
            }
        }
    }

    pub(super) fn counts(&mut self, shared: &Shared<'_>) -> bool {
        let now = Instant::now();
        let is_due = self.count_at <= now && shared.part.has_table() && shared.ownership.keeps(PARTITION);
        if is_due {
            self.count_at = now + telemetry::BACKLOG_INTERVAL;
        }
        is_due
    }

    pub(super) fn counted(&mut self, shared: &Shared<'_>, counted: Result<Backlog, StoreError>) {
        match counted {
            Ok(backlog) => {
                telemetry::backlog(&backlog);
                self.has_counted = true;
                shared
                    .health
                    .update(|vitals| vitals.halted = backlog.halted_aggregates);
            }
            Err(error) => {
                tracing::warn!(error = %describe(&error), "the backlog could not be counted");
                if self.has_counted {
                    telemetry::forget_backlog();
                }
            }
        }
    }

    pub(super) fn forget(&mut self, shared: &Shared<'_>) {
        if std::mem::take(&mut self.has_counted) {
            telemetry::forget_backlog();
            shared.health.update(|vitals| vitals.halted = 0);
        }
    }
}

#[derive(Debug)]
struct Purge {
    older_than: Option<Duration>,
    keys_older_than: Duration,
    after: Option<MessageId>,
    next_at: Instant,
}

impl Purge {
    fn new(config: &RelayConfig, rng: &mut fastrand::Rng) -> Self {
        Self {
            older_than: match config.retention {
                Retention::KeepFor(time) => Some(time),
                Retention::Keep | Retention::Delete => None,
            },
            keys_older_than: config.dedup_key_retention,
            after: None,
            next_at: Instant::now() + INTERVAL.mul_f64(rng.f64()),
        }
    }

    fn next_at(&self) -> Instant {
        self.next_at
    }

    fn due(&mut self) -> Option<PurgeRequest> {
        (self.next_at <= Instant::now()).then(|| {
            self.next_at = Instant::now() + INTERVAL;
            PurgeRequest {
                older_than: self.older_than,
                keys_older_than: self.keys_older_than,
                after: self.after,
                limit: BATCH,
            }
        })
    }

    fn done(&mut self, purged: Purged, rng: &mut fastrand::Rng) {
        self.after = purged.next;
        let pause = if purged.next.is_some() { PAUSE } else { INTERVAL };
        self.next_at = Instant::now() + pause.mul_f64(0.5 + rng.f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn purge_round_resumes_at_its_position_then_pauses() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut purge = Purge::new(&RelayConfig::default(), &mut rng);
        tokio::time::sleep_until(purge.next_at()).await;
        assert_eq!(purge.due().unwrap().after, None);
        assert_eq!(purge.due(), None, "one at a time");
        let id = MessageId::fresh();
        purge.done(
            Purged {
                deleted: 1000,
                next: Some(id),
            },
            &mut rng,
        );
        tokio::time::sleep_until(purge.next_at()).await;
        assert_eq!(purge.due().unwrap().after, Some(id));
        purge.done(
            Purged {
                deleted: 3,
                next: None,
            },
            &mut rng,
        );
        assert!(purge.next_at() >= Instant::now() + INTERVAL / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_retention_only_keys_are_purged() {
        let mut rng = fastrand::Rng::with_seed(1);
        for retention in [Retention::Keep, Retention::Delete] {
            let mut purge = Purge::new(&RelayConfig::default().retention(retention), &mut rng);
            tokio::time::sleep_until(purge.next_at()).await;
            let request = purge.due().unwrap();
            assert_eq!(request.older_than, None);
            assert_eq!(
                request.keys_older_than,
                RelayConfig::default().dedup_key_retention
            );
        }
    }
}

//! Purges the table and counts the backlog. The owner of one partition does both.

use tokio::time::Instant;

use super::Shared;
use crate::relay::retention::{self, Purge};
use crate::store::{Backlog, PurgeRequest, Purged, StoreError};
use crate::{describe, telemetry};

pub(super) struct Upkeep {
    purge: Purge,
    count_at: Instant,
    /// The gauges show what this relay counted.
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

    /// When the next purge is due.
    pub(super) fn next_at(&self, shared: &Shared<'_>) -> Option<Instant> {
        shared
            .ownership
            .keeps(retention::PARTITION)
            .then(|| self.purge.next_at())
    }

    /// The purge to run now.
    pub(super) fn step(&mut self, shared: &Shared<'_>) -> Option<PurgeRequest> {
        match shared.ownership.keeps(retention::PARTITION) {
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

    /// Whether to count the backlog now.
    pub(super) fn counts(&mut self, shared: &Shared<'_>) -> bool {
        let now = Instant::now();
        let is_due =
            self.count_at <= now && shared.part.has_table() && shared.ownership.keeps(retention::PARTITION);
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

    /// Another relay counts the backlog.
    pub(super) fn forget(&mut self, shared: &Shared<'_>) {
        if std::mem::take(&mut self.has_counted) {
            telemetry::forget_backlog();
            shared.health.update(|vitals| vitals.halted = 0);
        }
    }
}

//! Which partitions this relay owns, and until when it may rely on that.
//!
//! Invariant: the relay believes in a lease for a shorter time than the store grants it. It counts from the moment before the
//! request was sent, with its own monotonic clock, so a paused process or a slow answer makes the belief end early, never late.

use std::time::Duration;

use tokio::time::Instant;

use crate::message::PARTITIONS;
use crate::store::{Lease, OutboxStore, OwnerId, StoreError};

pub(super) struct Ownership {
    owner: OwnerId,
    ttl: Duration,
    leases: Vec<Lease>,
    /// Just before the oldest of the leases was granted or renewed.
    granted_at: Instant,
    /// When free partitions were last looked for.
    searched_at: Option<Instant>,
}

/// Until when a batch may be published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// No publish starts after this.
    pub(super) start: Instant,
    /// No publish is waited for after this; its outcome is unknown.
    pub(super) confirm: Instant,
}

impl Ownership {
    pub(super) fn new(owner: OwnerId, ttl: Duration) -> Self {
        Self {
            owner,
            ttl,
            leases: Vec::new(),
            granted_at: Instant::now(),
            searched_at: None,
        }
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(super) fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Renews what is owned and takes over what is free, both at most every third of the lease's time.
    pub(super) async fn keep<S: OutboxStore>(&mut self, store: &S) -> Result<(), StoreError> {
        if !self.leases.is_empty() && self.granted_at.elapsed() >= self.ttl / 3 {
            let asked_at = Instant::now();
            let kept = store.renew(self.owner, &self.leases, self.ttl).await?;
            if kept.len() < self.leases.len() {
                tracing::warn!(
                    lost = self.leases.len() - kept.len(),
                    "leases were lost; the relay was paused or the database away"
                );
            }
            self.leases = kept;
            self.granted_at = asked_at;
        }
        let due = self.searched_at.is_none_or(|at| at.elapsed() >= self.ttl / 3);
        if due && self.leases.len() < usize::from(PARTITIONS) {
            let asked_at = Instant::now();
            let taken = store.acquire(self.owner, self.ttl, PARTITIONS).await?;
            self.searched_at = Some(asked_at);
            if !taken.is_empty() {
                tracing::info!(partitions = taken.len(), "leases acquired");
                if self.leases.is_empty() {
                    self.granted_at = asked_at;
                }
                self.leases.extend(taken);
            }
        }
        Ok(())
    }

    /// How long a batch that is fetched now may be published, or `None` if nothing is owned.
    pub(super) fn deadlines(&self) -> Option<Deadlines> {
        (!self.leases.is_empty()).then(|| Deadlines {
            start: self.granted_at + self.ttl / 2,
            confirm: self.granted_at + self.ttl * 5 / 6,
        })
    }

    /// Gives everything back. On failure the leases run out on their own.
    pub(super) async fn release<S: OutboxStore>(&mut self, store: &S) {
        if let Err(error) = store.release(self.owner, &self.leases).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "leases could not be released; they run out"
            );
        }
        self.leases.clear();
    }
}

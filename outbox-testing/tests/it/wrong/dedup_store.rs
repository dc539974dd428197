//! Deduplication stores with one mistake each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_core::dedup::{ClaimToken, DedupFuture, DedupKey, DedupStore, StoreClaim};

use outbox_testing::MemoryDedupStore;

use DedupStoreMistake as M;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupStoreMistake {
    AlwaysComplains,
    SharesClaims,
    /// Checks whether a key is free, and claims it in a second step.
    LooksThenClaims,
    ForgetsConsumer,
    /// Completing a key only ends its claim.
    ForgetsDone,
    /// The store drops a completed key when the lease of its claim ends.
    KeepsForTheLease,
    CompletesOnce,
    ForgetsRelease,
    ReleasesDone,
    NeverExpires,
    ExpiresAtOnce,
    CompletesForAnybody,
    ReleasesForAnybody,
    /// The store rejects a completion after the lease of the claim.
    RefusesLateCompletion,
}

#[derive(Debug)]
pub struct WrongDedupStore {
    inner: MemoryDedupStore,
    mistake: DedupStoreMistake,
    claims: Mutex<HashMap<DedupKey, (ClaimToken, tokio::time::Instant)>>,
}

impl WrongDedupStore {
    #[must_use]
    pub fn new(mistake: DedupStoreMistake) -> Self {
        Self {
            inner: MemoryDedupStore::new(),
            mistake,
            claims: Mutex::default(),
        }
    }

    fn claims(&self) -> std::sync::MutexGuard<'_, HashMap<DedupKey, (ClaimToken, tokio::time::Instant)>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, mistake: DedupStoreMistake) -> bool {
        self.mistake == mistake
    }

    fn key(&self, key: &DedupKey) -> DedupKey {
        let mut key = key.clone();
        if self.is(M::ForgetsConsumer) {
            key.consumer.clear();
        }
        key
    }

    fn token_of_holder(&self, key: &DedupKey, token: ClaimToken) -> ClaimToken {
        self.claims().get(key).map_or(token, |(holder, _)| *holder)
    }

    fn has_passed(&self, key: &DedupKey) -> bool {
        self.claims()
            .get(key)
            .is_some_and(|(_, until)| *until <= tokio::time::Instant::now())
    }
}

impl DedupStore for WrongDedupStore {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        Box::pin(async move {
            let key = self.key(key);
            let granted = match self.mistake {
                M::NeverExpires => lease * 1_000_000,
                M::ExpiresAtOnce => Duration::ZERO,
                _ => lease,
            };
            let mut claim = self.inner.claim(&key, granted).await?;
            let until = tokio::time::Instant::now() + lease;
            if self.is(M::LooksThenClaims)
                && let StoreClaim::Mine(token) = claim
            {
                self.inner.release(&key, token).await?;
                tokio::task::yield_now().await;
                // A second claim during a running claim returns the same token.
                if let Some((token, _)) = self.claims().get(&key).copied() {
                    return Ok(StoreClaim::Mine(token));
                }
                claim = self.inner.claim(&key, granted).await?;
            }
            match claim {
                StoreClaim::Mine(token) => {
                    self.claims().insert(key, (token, until));
                }
                StoreClaim::InProgress if self.is(M::SharesClaims) => {
                    let token = self.token_of_holder(&key, ClaimToken::new(0));
                    return Ok(StoreClaim::Mine(token));
                }
                _ => {}
            }
            Ok(claim)
        })
    }

    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool> {
        Box::pin(async move {
            let key = self.key(key);
            match self.mistake {
                M::ForgetsDone => {
                    self.inner.release(&key, token).await?;
                    Ok(true)
                }
                M::KeepsForTheLease => {
                    let until = self.claims().get(&key).map(|(_, until)| *until);
                    let left = until.map_or(retention, |until| until - tokio::time::Instant::now());
                    self.inner.complete(&key, token, left).await
                }
                M::CompletesOnce if self.inner.is_done(&key) => Ok(false),
                M::CompletesForAnybody => {
                    let token = self.token_of_holder(&key, token);
                    self.inner.complete(&key, token, retention).await
                }
                M::RefusesLateCompletion if self.has_passed(&key) => Ok(false),
                _ => self.inner.complete(&key, token, retention).await,
            }
        })
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        Box::pin(async move {
            let key = self.key(key);
            match self.mistake {
                M::ForgetsRelease => Ok(()),
                M::ReleasesForAnybody => {
                    let token = self.token_of_holder(&key, token);
                    self.inner.release(&key, token).await
                }
                M::ReleasesDone if self.inner.is_done(&key) => {
                    self.inner.forget(&key);
                    Ok(())
                }
                _ => self.inner.release(&key, token).await,
            }
        })
    }

    fn preflight(&self, retention: Duration) -> DedupFuture<'_, Vec<String>> {
        Box::pin(async move {
            let mut warnings = self.inner.preflight(retention).await?;
            if self.is(M::AlwaysComplains) {
                warnings.push("the store might be wrong".to_owned());
            }
            Ok(warnings)
        })
    }
}

//! Conformance suite of [`DedupStore`]. Expiry of completed keys is not tested.
//!
//! Invariant: each function uses fresh keys, so all functions may run on one store.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::dedup::{ClaimToken, DedupKey, DedupStore, StoreClaim};
use outbox_core::message::MessageId;

/// A deduplication store under test.
pub trait DedupStoreFixture: Send + Sync + 'static {
    /// The store type under test.
    type Store: DedupStore;

    /// Two handles to the same store, as in two processes.
    fn stores(&self) -> [&Self::Store; 2];
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);
const KEEP: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(30);

fn fresh_key() -> DedupKey {
    DedupKey::new("billing", MessageId::fresh().into())
}

async fn claim(store: &impl DedupStore, key: &DedupKey, lease: Duration) -> StoreClaim {
    store.claim(key, lease).await.expect("the store answers")
}

async fn complete(store: &impl DedupStore, key: &DedupKey, token: ClaimToken) -> bool {
    store.complete(key, token, KEEP).await.expect("the store answers")
}

async fn release(store: &impl DedupStore, key: &DedupKey, token: ClaimToken) {
    store.release(key, token).await.expect("the store answers");
}

async fn mine(store: &impl DedupStore, key: &DedupKey, lease: Duration) -> ClaimToken {
    match claim(store, key, lease).await {
        StoreClaim::Mine(token) => token,
        other => panic!("{key} is free, but the claim returned {other:?}"),
    }
}

async fn taken_over(store: &impl DedupStore, key: &DedupKey) -> ClaimToken {
    let wait = async {
        loop {
            match claim(store, key, LONG).await {
                StoreClaim::Mine(token) => return token,
                StoreClaim::InProgress => tokio::time::sleep(SHORT / 6).await,
                StoreClaim::Done => panic!("{key} was never completed"),
            }
        }
    };
    let taken = tokio::time::timeout(SOON, wait).await;
    taken.expect("a claim is free once its lease has passed")
}

/// A healthy store has no warnings.
pub async fn a_healthy_store_passes_its_preflight<F: DedupStoreFixture>(fixture: &F) {
    for store in fixture.stores() {
        let warnings = store.preflight(KEEP).await.expect("the store is healthy");
        assert_eq!(warnings, Vec::<String>::new());
    }
}

/// Only one claim of a key succeeds. Names of consumers are case-sensitive.
pub async fn a_claim_is_exclusive<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    mine(here, &key, LONG).await;
    assert_eq!(claim(there, &key, LONG).await, StoreClaim::InProgress);
    assert_eq!(claim(here, &key, LONG).await, StoreClaim::InProgress);
    let longest = "c".repeat(64);
    for consumer in ["Billing", "billing_", "b-1", &longest] {
        mine(there, &DedupKey::new(consumer, key.event_id), LONG).await;
    }
    mine(there, &fresh_key(), LONG).await;
}

/// Concurrent claims have exactly one winner.
pub async fn concurrent_claims_have_one_winner<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    for _ in 0..5 {
        let key = fresh_key();
        let claims = (0..32).map(|n| claim(if n % 2 == 0 { here } else { there }, &key, LONG));
        let claims = join_all(claims).await;
        let is_won = |claim: &&StoreClaim| matches!(claim, StoreClaim::Mine(_));
        assert_eq!(claims.iter().filter(is_won).count(), 1, "{claims:?}");
        let has_lost = |claim: &&StoreClaim| **claim == StoreClaim::InProgress;
        assert_eq!(claims.iter().filter(has_lost).count(), 31, "{claims:?}");
    }
}

/// A completed key stays completed after the lease of its claim.
pub async fn a_completed_key_stays_completed<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let token = mine(here, &key, SHORT).await;
    assert!(complete(here, &key, token).await, "the caller holds the claim");
    tokio::time::sleep(SHORT * 2).await;
    for store in [here, there, here] {
        assert_eq!(claim(store, &key, LONG).await, StoreClaim::Done);
    }
}

/// Completing a key again returns the same result, so a caller can retry after a lost response.
pub async fn completing_again_changes_nothing<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let token = mine(here, &key, LONG).await;
    for store in [here, here, there] {
        assert!(
            complete(store, &key, token).await,
            "the first completion succeeds"
        );
    }
    assert_eq!(claim(there, &key, LONG).await, StoreClaim::Done);
}

/// Releasing a claim frees its key and invalidates its token.
pub async fn a_released_claim_is_free<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let first = mine(here, &key, LONG).await;
    release(here, &key, first).await;
    let second = mine(there, &key, LONG).await;
    release(here, &key, first).await;
    assert_eq!(claim(here, &key, LONG).await, StoreClaim::InProgress);
    assert!(complete(there, &key, second).await, "the caller holds the claim");
}

/// Releasing a completed key has no effect.
pub async fn releasing_a_completed_key_changes_nothing<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let token = mine(here, &key, LONG).await;
    assert!(complete(here, &key, token).await, "the caller holds the claim");
    release(here, &key, token).await;
    assert_eq!(claim(there, &key, LONG).await, StoreClaim::Done);
}

/// A key claimed by a crashed process is free after the lease of the claim.
pub async fn a_crash_frees_the_claim_after_its_lease<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let (held, abandoned) = (fresh_key(), fresh_key());
    mine(here, &held, LONG).await;
    mine(here, &abandoned, SHORT).await;
    taken_over(there, &abandoned).await;
    assert_eq!(claim(there, &held, LONG).await, StoreClaim::InProgress);
    assert_eq!(claim(here, &abandoned, LONG).await, StoreClaim::InProgress);
}

/// A lost claim cannot be completed.
pub async fn a_lost_claim_cannot_be_completed<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let lost = mine(here, &key, SHORT).await;
    let held = taken_over(there, &key).await;
    assert_ne!(lost, held, "tokens distinguish claims");
    assert!(
        !complete(here, &key, lost).await,
        "another claimant holds the key"
    );
    assert_eq!(claim(here, &key, LONG).await, StoreClaim::InProgress);
    assert!(complete(there, &key, held).await, "the caller holds the claim");
    assert!(
        !complete(here, &key, lost).await,
        "another claimant has completed the key"
    );
    assert_eq!(claim(here, &key, LONG).await, StoreClaim::Done);
}

/// A lost claim cannot be released.
pub async fn a_lost_claim_cannot_be_released<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let lost = mine(here, &key, SHORT).await;
    let held = taken_over(there, &key).await;
    release(here, &key, lost).await;
    assert_eq!(claim(here, &key, LONG).await, StoreClaim::InProgress);
    assert!(complete(there, &key, held).await, "the caller holds the claim");
}

/// A claimant may complete a key after its lease, if no other claimant has claimed the key.
pub async fn an_expired_claim_without_a_successor_is_completed<F: DedupStoreFixture>(fixture: &F) {
    let [here, there] = fixture.stores();
    let key = fresh_key();
    let token = mine(here, &key, SHORT).await;
    tokio::time::sleep(SHORT * 2).await;
    assert!(
        complete(here, &key, token).await,
        "no other claimant took the key"
    );
    assert_eq!(claim(there, &key, LONG).await, StoreClaim::Done);
}

/// Generates the tests of a deduplication store from test attributes and an expression (may await):
/// an `Option` of a [`DedupStoreFixture`](crate::conformance::dedup_store::DedupStoreFixture).
/// `None` skips the test.
#[macro_export]
macro_rules! dedup_store_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(dedup_store, [$(#[$($test)*])+], $fixture, [
            a_healthy_store_passes_its_preflight,
            a_claim_is_exclusive,
            concurrent_claims_have_one_winner,
            a_completed_key_stays_completed,
            completing_again_changes_nothing,
            a_released_claim_is_free,
            releasing_a_completed_key_changes_nothing,
            a_crash_frees_the_claim_after_its_lease,
            a_lost_claim_cannot_be_completed,
            a_lost_claim_cannot_be_released,
            an_expired_claim_without_a_successor_is_completed,
        ]);
    };
}

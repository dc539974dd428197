//! Tests of shares, deadlines and suspensions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;

fn lease(partition: u16) -> Lease {
    Lease { partition, epoch: 1 }
}

fn ownership_for(ttl: Duration, clocks: Clocks) -> Ownership {
    let config = RelayConfig::default().lease_ttl(ttl);
    Ownership::new(OwnerId::fresh(), &config, true, clocks)
}

fn apply(ownership: &mut Ownership, alive: u32, taken: impl IntoIterator<Item = u16>) -> Change {
    let mut renewal = ownership.plan(RelayHealth::Healthy);
    renewal.renew = Some(ownership.leases.clone());
    renewal.relays = Relays {
        healthy: alive,
        ..Relays::default()
    };
    renewal.taken = taken.into_iter().map(lease).collect();
    ownership.apply(renewal)
}

/// If leases become doubtful during a renewal, that renewal may have an older result, so the relay
/// renews again.
#[tokio::test(start_paused = true)]
async fn doubt_during_a_renewal_causes_another_renewal() {
    let ttl = Duration::from_secs(15);
    let mut ownership = ownership_for(ttl, Clocks::default());
    apply(&mut ownership, 1, 0..64);
    assert!(!ownership.is_due());
    ownership.doubt();
    let renewal = ownership.plan(RelayHealth::Healthy);
    assert!(renewal.renews());
    ownership.doubt();
    ownership.apply(renewal);
    assert!(ownership.is_due(), "no renewal since the second doubt");
    let renewal = ownership.plan(RelayHealth::Healthy);
    assert!(renewal.renews());
    ownership.apply(renewal);
    assert!(!ownership.is_due());
}

#[tokio::test(start_paused = true)]
async fn distrusted_lease_sends_nothing_before_its_renewal() {
    let ttl = Duration::from_secs(15);
    let mut ownership = ownership_for(ttl, Clocks::default());
    apply(&mut ownership, 1, 0..64);
    let may_send = |ownership: &Ownership| Instant::now() < ownership.deadlines().unwrap().start;
    assert!(may_send(&ownership));
    tokio::time::advance(SEARCH_INTERVAL).await;
    ownership.doubt();
    let asked_before = ownership.plan(RelayHealth::Healthy);
    ownership.distrust();
    assert!(!may_send(&ownership) && ownership.is_due());
    ownership.apply(asked_before);
    assert!(!may_send(&ownership) && ownership.is_due());
    let renewal = ownership.plan(RelayHealth::Healthy);
    assert!(!may_send(&ownership), "the answer is not there");
    ownership.apply(renewal);
    assert!(may_send(&ownership) && !ownership.is_due());

    ownership.distrust();
    assert!(
        !may_send(&ownership) && !ownership.is_due(),
        "it was renewed just now"
    );
    tokio::time::advance(SEARCH_INTERVAL).await;
    assert!(!may_send(&ownership) && ownership.is_due());
}

#[tokio::test(start_paused = true)]
async fn lease_deadlines_count_from_before_the_request() {
    let mut ownership = ownership_for(Duration::from_secs(12), Clocks::default());
    let mut renewal = ownership.plan(RelayHealth::Healthy);
    let asked_at = Instant::now();
    tokio::time::advance(Duration::from_secs(5)).await;
    renewal.taken = vec![lease(7)];
    ownership.apply(renewal);
    let deadlines = ownership.deadlines().unwrap();
    assert_eq!(deadlines.start, asked_at + Duration::from_secs(6));
    assert_eq!(deadlines.confirm, asked_at + Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn suspension_ends_trust_in_leases() {
    let (lead, ttl) = (Arc::new(AtomicI64::new(0)), Duration::from_secs(12));
    let read = lead.clone();
    let clocks = Clocks::new(move || time::Duration::seconds(read.load(Ordering::Relaxed)));
    let mut ownership = ownership_for(ttl, clocks);
    apply(&mut ownership, 1, 0..64);
    let granted_at = Instant::now();
    for set_back in [0, -3600] {
        lead.store(set_back, Ordering::Relaxed);
        assert_eq!(ownership.notice_suspension(), None);
        assert!(!ownership.is_due());
    }
    lead.store(5, Ordering::Relaxed);
    assert_eq!(ownership.notice_suspension(), Some(Duration::from_secs(5)));
    assert_eq!(ownership.notice_suspension(), None, "it is known");
    assert!(
        ownership.is_due(),
        "it looks at once whether the leases have lasted"
    );
    assert_eq!(
        ownership.deadlines().unwrap().start,
        granted_at + Duration::from_secs(1)
    );
    let renewal = ownership.plan(RelayHealth::Healthy);
    lead.store(3600, Ordering::Relaxed);
    assert!(ownership.notice_suspension().is_some());
    assert!(ownership.deadlines().unwrap().confirm <= Instant::now());
    ownership.apply(renewal);
    assert!(
        ownership.notice_suspension().is_some(),
        "the machine was suspended while the answer was on its way"
    );
    assert!(ownership.deadlines().unwrap().confirm <= Instant::now());
    let renewal = ownership.plan(RelayHealth::Healthy);
    ownership.apply(renewal);
    assert_eq!(ownership.notice_suspension(), None);
    assert_eq!(ownership.deadlines().unwrap().start, granted_at + ttl / 2);
}

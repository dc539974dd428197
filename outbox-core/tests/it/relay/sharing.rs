//! Tests of several relays on one outbox.

use outbox_testing::Ledger;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

fn spawn(
    store: &MemoryStore,
    broker: &MemoryBroker,
    shutdown: &CancellationToken,
) -> JoinHandle<RelayReport> {
    let (relay, shutdown) = (relay_of(store, broker, quick()), shutdown.clone());
    tokio::spawn(async move { relay.run(shutdown).await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn partitions_are_shared_evenly_among_live_relays() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let shutdowns: Vec<_> = (0..4).map(|_| CancellationToken::new()).collect();
    let mut relays = Vec::new();
    let shares = |store: &MemoryStore| {
        let mut shares: Vec<usize> = store.owners().into_values().collect();
        shares.sort_unstable();
        shares
    };
    for (shutdown, expected) in shutdowns
        .iter()
        .zip([vec![64], vec![32, 32], vec![20, 22, 22], vec![16; 4]])
    {
        relays.push(spawn(&store, &broker, shutdown));
        tokio::time::sleep(quick().lease_ttl * 2).await;
        assert_eq!(shares(&store), expected);
    }
    shutdowns[0].cancel();
    relays[1].abort();
    tokio::time::sleep(quick().lease_ttl * 3).await;
    assert_eq!(shares(&store), [32, 32]);
    shutdowns.iter().for_each(CancellationToken::cancel);
}

#[tokio::test(start_paused = true)]
async fn sharing_under_load_keeps_order_and_makes_no_copies() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_millis(5)),
    );
    let shutdown = CancellationToken::new();
    let mut relays = Vec::new();
    for round in 0..40 {
        credit(&store, 100, 3);
        if round % 10 == 0 {
            relays.push(spawn(&store, &broker, &shutdown));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    store.until_drained().await;
    shutdown.cancel();
    for relay in relays {
        assert!(relay.await.unwrap().published > 0, "every relay had its share");
    }
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopped_relay_is_replaced_within_a_second() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let (first_shutdown, shutdown) = (CancellationToken::new(), CancellationToken::new());
    let first = spawn(&store, &broker, &first_shutdown);
    let second = spawn(&store, &broker, &shutdown);
    tokio::time::sleep(quick().lease_ttl * 2).await;
    first_shutdown.cancel();
    first.await.unwrap();
    let stopped_at = Instant::now();
    credit(&store, 200, 1);
    store.until_drained().await;
    assert!(
        stopped_at.elapsed() < Duration::from_secs(1),
        "{:?}",
        stopped_at.elapsed()
    );
    shutdown.cancel();
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn relay_resumed_after_its_lease_sends_nothing_stale() {
    let (store, broker) = (
        MemoryStore::new(),
        MemoryBroker::new().with_latency(Duration::from_millis(100)),
    );
    credit(&store, 50, 4);
    let zombie = relay_of(&store, &broker, quick().window(20));
    let shutdown = CancellationToken::new();
    let mut run = Box::pin(zombie.run(shutdown.clone()));
    tokio::select! {
        _ = &mut run => unreachable!("it runs until it is told to stop"),
        () = until("some publishes", || broker.publishes() >= 40) => {}
    }
    tokio::time::sleep(quick().lease_ttl * 2).await;
    let successor = spawn(&store, &broker, &shutdown);
    store.until_drained().await;
    let published = broker.publishes();
    let awake = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(run, awake);
    report.unwrap();
    successor.await.unwrap();
    assert_eq!(broker.publishes(), published, "the zombie sent something");
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
}

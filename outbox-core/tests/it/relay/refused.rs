//! Tests of verdicts that the database rejects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_core::health::Health;
use outbox_core::retry::Backoff;
use outbox_core::{FailureClass, MessageId, NewMessage, Relay, RelayError, StoreError};

use super::watched::Watched;
use super::*;

fn first_of(store: &MemoryStore, account: u32) -> MessageId {
    let aggregate = Aggregate::new("account", account.to_string());
    let row = store.rows().into_iter().find(|row| *row.aggregate() == aggregate);
    row.unwrap().message.id
}

fn all_published(store: &MemoryStore, but: &[u32]) -> bool {
    (1..=16)
        .filter(|account| !but.contains(account))
        .all(|account| statuses(store, account).iter().all(|status| *status == Published))
}

#[tokio::test(start_paused = true)]
async fn rejected_verdict_does_not_block_other_verdicts() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 16, 100);
    store.refuse_verdicts(&[first_of(&store, 3)]);
    let relay = relay_of(&store, &broker, quick());
    let health = relay.health();
    let report = run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(all_published(&store, &[3]), "the others go on");
        let mut expected = [Published; 100];
        expected[0] = Pending;
        assert_eq!(
            statuses(&store, 3),
            expected,
            "only the refused verdict is missing"
        );
        assert!(
            matches!(health.now(), Health::Degraded { .. }),
            "{}",
            health.now()
        );
        credit(&store, 16, 1);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(all_published(&store, &[3]));
        let told = health.now().to_string();
        assert!(told.contains("rejects the verdicts on 1 messages"), "{told}");
        store.refuse_verdicts(&[]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(all_published(&store, &[]), "tried again");
        assert_eq!(health.now(), Health::Alive);
    })
    .await;
    assert_eq!((report.published, report.duplicates), (1616, 0));
    assert_eq!(broker.messages().len(), 1616, "nothing is sent again meanwhile");
}

#[tokio::test(start_paused = true)]
async fn rejected_dead_letter_is_not_overtaken_and_reported_late() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 16, 10);
    let poison = first_of(&store, 3);
    store.refuse_verdicts(&[poison]);
    broker.fail_matching(move |message| message.id == poison, FailureClass::Permanent);
    let told = Arc::new(AtomicUsize::new(0));
    let notes = told.clone();
    let relay = relay_of(&store, &broker, quick()).on_dead_letter(move |_| {
        notes.fetch_add(1, Ordering::Relaxed);
    });
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(all_published(&store, &[3]));
        assert!(!statuses(&store, 3).contains(&Published), "nothing overtakes it");
        assert_eq!(told.load(Ordering::Relaxed), 0, "not before it is recorded");
        store.refuse_verdicts(&[]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(statuses(&store, 3)[0], Dead);
        assert_eq!(told.load(Ordering::Relaxed), 1);
    })
    .await;
}

/// If no verdict can be recorded, retries must back off as in an outage.
#[tokio::test(start_paused = true)]
async fn database_that_rejects_all_verdicts_gets_few_retries() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 16, 100);
    let ids: Vec<MessageId> = store.rows().iter().map(|row| row.message.id).collect();
    store.refuse_verdicts(&ids);
    let watched = Watched::new(&store);
    let relay = Relay::new(watched.clone(), broker.publisher()).with_config(quick());
    let shutdown = CancellationToken::new();
    let scenario = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(watched.settlements() < 200, "{}", watched.settlements());
        store.refuse_verdicts(&[]);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(all_published(&store, &[]));
        shutdown.cancel();
    };
    let _alone = outbox_core::wake::isolate();
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().published, 1600);
}

/// If a verdict is rejected, a later delayed message of its aggregate stays due until the verdict
/// is recorded.
#[tokio::test(start_paused = true)]
async fn rejected_verdict_hides_no_delayed_messages() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let delayed = |account, seconds| {
        let message = NewMessage::from_event(&Credited { account, cents: 1 }).unwrap();
        message.available_at(store.now() + Duration::from_secs(seconds))
    };
    let cents = |cents| Credited { account: 3, cents };
    store.record([cents(1), cents(2)]).unwrap();
    store.record([delayed(3, 1)]).unwrap();
    let refused = first_of(&store, 3);
    store.refuse_verdicts(&[refused]);
    broker.fail_matching(move |message| message.id == refused, FailureClass::Transient);
    let others: Vec<NewMessage> = (100..150).map(|account| delayed(account, 60)).collect();
    store.record(others).unwrap();
    let rarely = Backoff {
        min: Duration::from_secs(600),
        max: Duration::from_secs(600),
    };
    let config = quick().batch(std::num::NonZeroU32::MIN).backoff(rarely);
    let relay = relay_of(&store, &broker, config);
    run_during(&relay, async {
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert_eq!(statuses(&store, 3), [Pending, Waiting, Waiting]);
        assert_eq!(broker.messages().len(), 50);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn drain_fails_at_a_rejected_verdict_after_all_else() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let relay = relay_of(&store, &broker, quick());
    let later = NewMessage::from_event(&Credited {
        account: 17,
        cents: 1,
    })
    .unwrap();
    let later = later.available_at(store.now() + Duration::from_secs(1));
    store.record([later]).unwrap();
    relay.drain().await.unwrap();
    assert_eq!(statuses(&store, 17), [Waiting], "its delay is not over");

    credit(&store, 16, 100);
    store.refuse_verdicts(&[first_of(&store, 3)]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for again in [false, true] {
        let error = relay.drain().await.unwrap_err();
        assert!(
            matches!(error, RelayError::Store(StoreError::Refused { .. })),
            "{error}"
        );
        assert!(all_published(&store, &[3]), "again: {again}");
        assert_eq!(statuses(&store, 17), [Published], "again: {again}");
        assert_eq!(statuses(&store, 3)[1..], [Published; 99], "again: {again}");
    }
    store.refuse_verdicts(&[]);
    relay.drain().await.unwrap();
    assert!(all_published(&store, &[]));
    assert_eq!(broker.messages().len(), 1601, "no copy has an id of its own");
}

/// A message causes the failure, so the relay must not hand over.
#[tokio::test(start_paused = true)]
async fn rejected_verdict_moves_no_partition() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let delayed = NewMessage::from_event(&Credited { account: 1, cents: 1 })
        .unwrap()
        .available_at(store.now() + Duration::from_secs(7200));
    store.record([delayed]).unwrap();
    store.refuse_verdicts(&[first_of(&store, 1)]);
    let relays = [(); 2].map(|()| relay_of(&store, &broker, quick()));
    run_during(&relays[0], async {
        run_during(&relays[1], async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let mut shares: Vec<usize> = store.owners().into_values().collect();
                shares.sort_unstable();
                assert_eq!(shares, [32, 32]);
            }
        })
        .await;
    })
    .await;
}

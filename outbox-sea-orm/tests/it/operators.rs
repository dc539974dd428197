//! Guarantees with concurrent relays, operators and business transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outbox_core::{
    FetchRequest, Lease, MessageStatus, OutboxAdmin, OutboxStore, PurgeRequest, Selection, StoreError,
    Verdict,
};
use outbox_sea_orm::SqlStore;
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use sea_orm::{ConnectionTrait as _, IsolationLevel, TransactionTrait as _};

use crate::support::{Backend, TestDb, settlements};

const SOON: Duration = Duration::from_secs(60);

crate::on_every_backend!(
    relay_and_operators_leave_no_message_stuck,
    concurrent_purges_do_not_disturb_a_relay,
);

/// A transaction of the application holds head rows of settled messages. The relay's sessions have
/// a stricter isolation level than READ COMMITTED.
mod business {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        let strict = "SET lock_timeout = '1s'; SET default_transaction_isolation = serializable";
        check(Backend::Postgres, strict).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        let strict = "SET SESSION innodb_lock_wait_timeout = 1, tx_isolation = 'SERIALIZABLE'";
        check(Backend::MariaDb, strict).await;
    }

    async fn reads(test: &TestDb) -> i64 {
        let (messages, blocks) = (test.messages(), test.blocks());
        test.int(&format!(
            "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' \
             AND relation IN ('{messages}'::regclass, '{blocks}'::regclass)"
        ))
        .await
    }

    async fn check(backend: Backend, strict: &str) {
        let Some(test) = TestDb::open(backend, "business").await else {
            return;
        };
        let events = |n| {
            (0..3_300)
                .map(|id: u64| Probe::noted(id.to_string(), n))
                .collect::<Vec<_>>()
        };
        test.record(events(1)).await.unwrap();
        let business = test.outbox().begin().await.unwrap();
        outbox_sea_orm::record(&business, [Probe::noted("0", 2), Probe::noted("1500", 2)])
            .await
            .unwrap();
        let (_, leases) = test.lease_all().await;
        let pool = test.one_connection().await;
        pool.execute_unprepared(strict).await.unwrap();
        let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
        let witness = test
            .db
            .begin_with_config(Some(IsolationLevel::Serializable), None)
            .await
            .unwrap();
        let relays = test.names.table(test.sql_backend(), "outbox_relays");
        let look = format!("SELECT count(*) FROM {relays}");
        witness.execute_unprepared(&look).await.unwrap();
        let request = FetchRequest {
            leases: &leases,
            limit: 3_300.try_into().unwrap(),
            bytes: usize::MAX,
            in_flight: &[],
        };
        let rows = store.fetch(request).await.unwrap().due;
        let thirds: Vec<_> = rows.chunks(1_100).collect();
        let blocked = Verdict::Blocked {
            delay: Duration::ZERO,
            error: Some("no".to_owned()),
            attempt: true,
        };
        for (rows, verdict) in [
            (thirds[0], Verdict::Published { keep: true }),
            (thirds[1], blocked),
            (thirds[2], Verdict::Published { keep: false }),
        ] {
            let settled = store.settle(&leases, &settlements(rows, &verdict)).await;
            assert_eq!(
                settled.unwrap_or_else(|error| panic!("{verdict:?}: {error:?}")),
                1_100
            );
        }
        let request = PurgeRequest {
            older_than: Some(Duration::ZERO),
            keys_older_than: Duration::from_secs(3600),
            after: None,
            limit: 10_000.try_into().unwrap(),
        };
        assert_eq!(store.purge(request).await.unwrap().deleted, 1_100);
        if backend == Backend::Postgres {
            assert_eq!(reads(&test).await, 0);
            let read = format!("SELECT count(*) FROM {}", test.messages());
            pool.execute_unprepared(&read).await.unwrap();
            assert!(reads(&test).await > 0, "the sessions are serializable");
        }
        witness.rollback().await.unwrap();
        business.commit().await.unwrap();
    }
}

async fn relay(test: &TestDb, leases: &[Lease], round: u64, published: &mut Vec<(String, u64)>) -> usize {
    let store = test.store();
    let scanned = test.scan(leases, 50).await;
    let blocked = test.fetch_waiting(leases).await;
    let mut waits = scanned.waits;
    waits.extend(blocked.waits);
    if !waits.is_empty() {
        until_settled(&store, leases, &waits).await;
    }
    let mut rows = scanned.due;
    rows.extend(blocked.due);
    let found = rows.len();
    let mut failed = std::collections::HashSet::new();
    for (n, row) in rows.iter().enumerate() {
        if failed.contains(&row.aggregate) {
            continue;
        }
        let sequence = row.message.as_ref().unwrap().sequence.unwrap();
        let verdict = match (round + n as u64 + sequence) % 7 {
            0 => Verdict::Dead {
                error: "no".to_owned(),
                halt: true,
            },
            1 | 2 => Verdict::Blocked {
                delay: Duration::ZERO,
                error: Some("no".to_owned()),
                attempt: true,
            },
            _ => {
                published.push((row.aggregate.id.clone(), sequence));
                Verdict::Published { keep: true }
            }
        };
        if !matches!(verdict, Verdict::Published { .. }) {
            failed.insert(row.aggregate.clone());
        }
        until_settled(&store, leases, &settlements(std::slice::from_ref(row), &verdict)).await;
    }
    found
}

async fn until_settled(store: &SqlStore, leases: &[Lease], settlements: &[outbox_core::Settlement]) {
    for _ in 0..50 {
        match store.settle(leases, settlements).await {
            Ok(_) => return,
            Err(error) if is_busy(&error) => tokio::task::yield_now().await,
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("the database stays busy");
}

pub(crate) fn is_busy(error: &StoreError) -> bool {
    format!("{error:?}").contains("database is locked")
}

async fn relay_and_operators_leave_no_message_stuck(test: TestDb) {
    const AGGREGATES: u64 = 6;
    const EACH: u64 = 8;
    for n in 1..=EACH {
        let events: Vec<Probe> = (0..AGGREGATES).map(|a| Probe::noted(a.to_string(), n)).collect();
        test.record(events).await.unwrap();
    }
    let (_, leases) = test.lease_all().await;
    let stop = Arc::new(AtomicBool::new(false));
    let operators: Vec<_> = (0..2)
        .map(|operator| {
            let (store, stop) = (test.store(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let outcome = match operator {
                        0 => store.retry(&Selection::dead_letters()).await.map(|_| ()),
                        _ => {
                            let aggregate = outbox_core::Aggregate::new("probe", "1");
                            store.resume(&aggregate).await.map(|_| ())
                        }
                    };
                    match outcome {
                        Err(error) if !is_busy(&error) => panic!("{error:?}"),
                        _ => tokio::task::yield_now().await,
                    }
                }
            })
        })
        .collect();
    let mut published = Vec::new();
    let began = Instant::now();
    for round in 0.. {
        let found = relay(&test, &leases, round, &mut published).await;
        if published.len() as u64 == AGGREGATES * EACH || began.elapsed() > SOON {
            break;
        }
        if found == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for operator in operators {
        operator.await.unwrap();
    }
    for aggregate in 0..AGGREGATES {
        let sequences: Vec<u64> = published
            .iter()
            .filter(|(id, _)| *id == aggregate.to_string())
            .map(|(_, sequence)| *sequence)
            .collect();
        assert_eq!(sequences, (1..=EACH).collect::<Vec<_>>(), "aggregate {aggregate}");
    }
    let blocks = format!("SELECT count(*) FROM {}", test.blocks());
    assert_eq!(test.int(&blocks).await, 0, "a block is left");
    let waiting = Selection::all().status(MessageStatus::Waiting);
    let waiting = test.store().list(&waiting, 10.try_into().unwrap()).await.unwrap();
    assert_eq!(waiting, []);
}

async fn concurrent_purges_do_not_disturb_a_relay(test: TestDb) {
    let probes = |name: &'static str, count: u64| {
        let probes = (0..count).map(move |n| Probe::noted(format!("{name}{n}"), n));
        probes.collect::<Vec<_>>()
    };
    let (_, leases) = test.lease_all().await;
    test.record(probes("pending", 20)).await.unwrap();
    test.record(probes("dead", 10)).await.unwrap();
    let rows = test.fetch_all().await;
    let dead: Vec<_> = rows
        .into_iter()
        .filter(|row| row.aggregate.id.starts_with("dead"))
        .collect();
    let verdict = Verdict::Dead {
        error: "no".to_owned(),
        halt: false,
    };
    test.settle(&leases, &dead, verdict).await;
    let mut deleted = 0;
    for _ in 0..5 {
        test.record(probes("sent", 200)).await.unwrap();
        let rows = test.fetch_all().await;
        let rows: Vec<_> = rows
            .into_iter()
            .filter(|row| row.aggregate.id.starts_with("sent"))
            .collect();
        let (settled, unsettled) = rows.split_at(rows.len() / 2);
        test.settle(&leases, settled, Verdict::Published { keep: true })
            .await;
        let purge = || async {
            let request = PurgeRequest {
                older_than: Some(Duration::ZERO),
                keys_older_than: Duration::from_secs(3600),
                after: None,
                limit: 10_000.try_into().unwrap(),
            };
            loop {
                match test.store().purge(request).await {
                    Ok(purged) => return purged.deleted,
                    Err(error) => assert!(is_busy(&error), "{error:?}"),
                }
            }
        };
        let relay = async {
            let settlements = settlements(unsettled, &Verdict::Published { keep: true });
            until_settled(&test.store(), &leases, &settlements).await;
        };
        let (one, other, ()) = futures_util::join!(purge(), purge(), relay);
        deleted += one + other;
    }
    let count = async |of: &str| {
        let sql = format!("SELECT count(*) FROM {} WHERE {of}", test.messages());
        u64::try_from(test.int(&sql).await).unwrap()
    };
    assert_eq!(count("status <> 1").await, 30, "what is pending or dead stays");
    assert_eq!(count("status = 1").await + deleted, 1_000);
    assert!(deleted > 0);
}

//! Limits the bytes that the database sends for a fetch. A proxy counts them.

use std::time::Duration;

use outbox_core::{FetchRequest, OutboxStore, OwnerId, WaitingRequest};
use outbox_sea_orm::SqlStore;
use sea_orm::DbBackend;

use crate::proxy::Proxy;
use crate::support::{Backend, TTL, TestDb};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

const MESSAGES: usize = 1_000;
const PAYLOAD: usize = 64 * KIB;

const FETCHES: usize = 5;
const BYTES: usize = MIB;

const BUFFERS: usize = 16 * MIB;

async fn open(backend: Backend, status: i64) -> Option<(TestDb, Proxy)> {
    let test = TestDb::open(backend, "bytes").await?;
    let (id, from) = match test.sql_backend() {
        DbBackend::Postgres => (
            "gen_random_uuid()",
            format!("generate_series(1, {MESSAGES}) AS numbers (n)"),
        ),
        _ => (
            "UNHEX(MD5(UUID()))",
            format!("(SELECT seq AS n FROM seq_1_to_{MESSAGES}) AS numbers"),
        ),
    };
    let (text, payload) = match test.sql_backend() {
        DbBackend::Postgres => ("n::text", format!("convert_to(repeat('x', {PAYLOAD}), 'UTF8')")),
        _ => ("n", format!("REPEAT('x', {PAYLOAD})")),
    };
    test.execute(&format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, \
         headers, status, created_at, available_at) SELECT {id}, n % 64, 'order', {text}, {}, 'order.placed', 1, 'text/plain', {payload}, '{{}}', {status}, \
         '2020-01-01', \
         {} FROM {from}",
        test.messages(),
        if status == 0 { "1" } else { "NULL" },
        if status == 0 { "NULL" } else { "'2020-01-01'" },
    ))
    .await;
    let proxy = Proxy::in_front_of(test.url()).await;
    Some((test, proxy))
}

/// Over a pool of one connection, each fetch must first read the rest of the previous result.
async fn store(test: &TestDb, proxy: &Proxy) -> SqlStore {
    let pool = test
        .connect_through(proxy.url(), |options| {
            options
                .max_connections(1)
                .acquire_timeout(Duration::from_secs(60));
        })
        .await;
    SqlStore::new(pool).with_names(&test.names).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_limits_bytes_on_the_wire() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some((test, proxy)) = open(backend, 0).await else {
            continue;
        };
        for partitions in [64, 32] {
            let store = store(&test, &proxy).await;
            test.expire_leases().await;
            let leases = store.acquire(OwnerId::fresh(), TTL, partitions).await.unwrap();
            let before = proxy.received();
            for _ in 0..FETCHES {
                let request = FetchRequest {
                    leases: &leases,
                    limit: (MESSAGES as u32).try_into().unwrap(),
                    bytes: BYTES,
                    in_flight: &[],
                };
                let fetched = store.fetch(request).await.unwrap();
                assert!(fetched.more && !fetched.due.is_empty());
                let bytes = fetched.due.len() * PAYLOAD;
                assert!(
                    (BYTES / 4..=BYTES + PAYLOAD).contains(&bytes),
                    "{bytes} of {BYTES}"
                );
            }
            let sent = proxy.received() - before;
            assert!(
                sent < BUFFERS + 2 * FETCHES * BYTES,
                "{backend:?}: {} MiB were sent",
                sent / MIB
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_fetch_limits_bytes_on_the_wire() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some((test, proxy)) = open(backend, 3).await else {
            continue;
        };
        let store = store(&test, &proxy).await;
        let leases = store.acquire(OwnerId::fresh(), TTL, 64).await.unwrap();
        for _ in 0..FETCHES {
            let request = WaitingRequest {
                leases: &leases,
                limit: (MESSAGES as u32).try_into().unwrap(),
                per_aggregate: 256.try_into().unwrap(),
                bytes: BYTES,
                in_flight: &[],
                excluding: &[],
            };
            let fetched = store.fetch_waiting(request).await.unwrap();
            assert!(fetched.more && !fetched.due.is_empty());
        }
        let sent = proxy.received();
        assert!(
            sent < BUFFERS + 2 * FETCHES * BYTES,
            "{backend:?}: {} MiB were sent",
            sent / MIB
        );
    }
}

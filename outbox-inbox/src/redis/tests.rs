//! Tests of the store against a Redis server.

use outbox_testing::backend_url;
use outbox_testing::conformance::dedup_store::DedupStoreFixture;

use super::*;

struct Fixture([RedisDedupStore; 2]);

impl Fixture {
    fn new() -> Option<Self> {
        let url = backend_url("OUTBOX_TEST_REDIS_URL")?;
        Some(Self([(), ()].map(|()| RedisDedupStore::new(&url).unwrap())))
    }
}

impl DedupStoreFixture for Fixture {
    type Store = RedisDedupStore;

    fn stores(&self) -> [&RedisDedupStore; 2] {
        [&self.0[0], &self.0[1]]
    }
}

outbox_testing::dedup_store_conformance!(
    #[tokio::test]
    Fixture::new()
);

fn key() -> DedupKey {
    DedupKey::new("billing", outbox_core::MessageId::fresh().into())
}

#[tokio::test]
async fn every_key_has_a_time_to_live() {
    let Some(Fixture([store, other])) = Fixture::new() else {
        return;
    };
    let other = other.with_prefix("other");
    let (key, lease, retention) = (key(), Duration::from_secs(100), Duration::from_secs(1000));
    let ttl = async || {
        let name = format!("outbox-dedup:billing:{}", key.event_id);
        let mut connection = store.connection().await.unwrap();
        let mut command = redis::cmd("PTTL");
        command
            .arg(name)
            .query_async::<i64>(&mut connection)
            .await
            .unwrap()
    };
    let StoreClaim::Mine(token) = store.claim(&key, lease).await.unwrap() else {
        panic!("it is free");
    };
    assert!((1..=100_000).contains(&ttl().await), "{}", ttl().await);
    assert!(matches!(
        other.claim(&key, lease).await.unwrap(),
        StoreClaim::Mine(_)
    ));
    assert!(store.complete(&key, token, retention).await.unwrap());
    assert!((100_001..=1_000_000).contains(&ttl().await), "{}", ttl().await);
    let longest = store.complete(&self::key(), token, Duration::MAX).await;
    assert!(longest.unwrap());
    assert!(matches!(
        store.claim(&self::key(), Duration::ZERO).await.unwrap(),
        StoreClaim::Mine(_)
    ));
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let store = RedisDedupStore::new(&format!("redis://127.0.0.1:{port}")).unwrap();
    let error = store.claim(&key(), TIMEOUT).await.unwrap_err();
    assert!(matches!(error, DedupStoreError::Unavailable { .. }), "{error}");
    let error = store.preflight(TIMEOUT).await.unwrap_err();
    assert!(matches!(error, DedupStoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_a_configuration_error() {
    let Some(url) = backend_url("OUTBOX_TEST_REDIS_URL") else {
        return;
    };
    let url = url.replace("redis://", "redis://nobody:wrong@");
    let store = RedisDedupStore::new(&url).unwrap();
    let error = store.preflight(TIMEOUT).await.unwrap_err();
    assert!(
        matches!(error, DedupStoreError::Configuration { .. }),
        "{error:?}"
    );
}

#[test]
fn a_malformed_address_is_a_configuration_error() {
    let error = RedisDedupStore::new("127.0.0.1:6379/x").unwrap_err();
    assert!(matches!(error, DedupStoreError::Configuration { .. }), "{error}");
}

#[test]
fn server_that_loses_keys_causes_warning() {
    let info = |maxmemory, policy, aof| {
        warnings(&format!(
            "# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n# Persistence\r\naof_enabled:{aof}\r\n"
        ))
    };
    assert!(info("0", "noeviction", 1).is_empty());
    assert!(
        info("0", "allkeys-lru", 1).is_empty(),
        "memory without bound is never full"
    );
    assert!(info("1000", "noeviction", 1).is_empty());
    assert!(info("1000", "volatile-ttl", 1)[0].contains("volatile-ttl"));
    assert!(info("0", "noeviction", 0)[0].contains("appendonly"));
    assert!(warnings("").is_empty());
}

#[test]
fn a_password_is_not_shown() {
    let store = RedisDedupStore::new("redis://user:hunter2@127.0.0.1:6379").unwrap();
    assert!(!format!("{store:?}").contains("hunter2"));
}

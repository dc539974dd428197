//! Deduplication in a bucket: the suite on both servers, and how the bucket is made.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::MessageId;
use outbox_core::dedup::{DedupKey, DedupStore as _, DedupStoreError, StoreClaim};
use outbox_nats::async_nats::jetstream::stream::{Config, DiscardPolicy};
use outbox_nats::{DedupBucketSpec, KvDedupStore, ProvisionError, Provisioning};
use outbox_testing::conformance::dedup_store::DedupStoreFixture;

use crate::environment::{Nats, SOON, answered, claim, on_both_servers, refused};
use crate::private_server::PrivateServer;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(600);

struct Fixture {
    stores: [KvDedupStore; 2],
    _nats: Nats,
}

impl Fixture {
    async fn new(variable: &'static str) -> Option<Self> {
        let nats = Nats::from_variable(variable).await?;
        let spec = spec(&nats);
        let here = open(&nats, &spec).await;
        let other = Nats::at(nats.url()).await;
        let there = open(&other, &spec).await;
        Some(Self {
            stores: [here, there],
            _nats: nats,
        })
    }
}

/// A bucket that is deleted with the test.
fn spec(nats: &Nats) -> DedupBucketSpec {
    DedupBucketSpec::default().bucket(&nats.name)
}

async fn open(nats: &Nats, spec: &DedupBucketSpec) -> KvDedupStore {
    answered(async || KvDedupStore::open(nats.client.clone(), spec).await).await
}

async fn config(nats: &Nats) -> Config {
    let stream = nats.jetstream().get_stream(format!("KV_{}", nats.name)).await;
    stream.unwrap().cached_info().config.clone()
}

impl DedupStoreFixture for Fixture {
    type Store = KvDedupStore;

    fn stores(&self) -> [&KvDedupStore; 2] {
        let [here, there] = &self.stores;
        [here, there]
    }
}

mod on_current {
    outbox_testing::dedup_store_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_URL").await
    );
}

mod on_old {
    outbox_testing::dedup_store_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_OLD_URL").await
    );
}

fn key() -> DedupKey {
    DedupKey::new("billing", MessageId::fresh().into())
}

async fn a_bucket_is_made_once_by_many(nats: &Nats) {
    let spec = spec(nats);
    for store in join_all((0..8).map(|_| open(nats, &spec))).await {
        let warnings = answered(async || store.preflight(DAY).await).await;
        assert_eq!(warnings, Vec::<String>::new());
    }
    let made = config(nats).await;
    assert_eq!((made.max_messages_per_subject, made.max_age), (1, 15 * DAY));
    // Another process that asks for other settings changes nothing.
    let other = spec.clone().max_age(DAY);
    open(nats, &other).await;
    assert_eq!(config(nats).await.max_age, 15 * DAY);
}

async fn a_missing_bucket_is_only_reported_when_nothing_may_be_made(nats: &Nats) {
    let spec = spec(nats).provisioning(Provisioning::VerifyOnly);
    let error = refused(async || KvDedupStore::open(nats.client.clone(), &spec).await).await;
    let ProvisionError::Missing { command, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        command.starts_with(&format!("nats kv add {}", spec.bucket)),
        "{command}"
    );
    let stream = format!("KV_{}", nats.name);
    assert!(nats.jetstream().get_stream(stream).await.is_err());
}

async fn a_bucket_that_forgets_too_early_is_refused(nats: &Nats) {
    let spec = spec(nats).max_age(DAY);
    let store = open(nats, &spec).await;
    answered(async || store.preflight(DAY).await).await;
    let error = refused(async || store.preflight(2 * DAY).await).await;
    assert!(matches!(error, DedupStoreError::Configuration { .. }), "{error}");
    assert!(error.to_string().contains("--max-age=172800s"), "{error}");
    let stream = format!("KV_{}", nats.name);
    nats.jetstream().delete_stream(stream).await.unwrap();
    let error = refused(async || store.preflight(DAY).await).await;
    assert!(matches!(error, DedupStoreError::Configuration { .. }), "{error}");
    let error = store.claim(&key(), LEASE).await.unwrap_err();
    assert!(matches!(error, DedupStoreError::Unavailable { .. }), "{error}");
}

async fn a_bucket_that_drops_keys_when_it_is_full_is_refused(nats: &Nats) {
    let spec = spec(nats);
    let config = Config {
        name: format!("KV_{}", nats.name),
        subjects: vec![format!("$KV.{}.>", spec.bucket)],
        discard: DiscardPolicy::Old,
        max_bytes: 1_000_000,
        max_messages_per_subject: 1,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let error = refused(async || KvDedupStore::open(nats.client.clone(), &spec).await).await;
    assert!(
        matches!(
            error,
            ProvisionError::Setting {
                setting: "discard",
                ..
            }
        ),
        "{error}"
    );
}

async fn a_key_that_somebody_else_wrote_is_no_claim(nats: &Nats) {
    let spec = spec(nats);
    let store = open(nats, &spec).await;
    let key = key();
    let subject = format!("$KV.{}.billing.{}", spec.bucket, key.event_id);
    let sent = nats.jetstream().publish(subject, "hello".into()).await.unwrap();
    sent.await.unwrap();
    let error = refused(async || store.claim(&key, LEASE).await).await;
    assert!(matches!(error, DedupStoreError::Configuration { .. }), "{error}");
}

on_both_servers!(
    a_bucket_is_made_once_by_many,
    a_missing_bucket_is_only_reported_when_nothing_may_be_made,
    a_bucket_that_forgets_too_early_is_refused,
    a_bucket_that_drops_keys_when_it_is_full_is_refused,
    a_key_that_somebody_else_wrote_is_no_claim,
);

#[tokio::test]
async fn an_outage_is_unavailable_and_bounded_and_loses_nothing() {
    let Some(server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    let patient = open(&nats, &spec(&nats)).await;
    let store = patient.clone().with_timeout(Duration::from_millis(500));
    let (done, token) = claim(&patient, LEASE).await;
    assert!(answered(async || patient.complete(&done, token, DAY).await).await);
    let (held, token) = claim(&patient, LEASE).await;
    server.pause();
    let answers = async {
        for error in [
            store.claim(&done, LEASE).await.map(drop).unwrap_err(),
            store.complete(&held, token, DAY).await.map(drop).unwrap_err(),
            store.preflight(DAY).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, DedupStoreError::Unavailable { .. }), "{error}");
        }
    };
    tokio::time::timeout(SOON, answers).await.expect("bounded");
    server.resume();
    let state = async |key| answered(async || patient.claim(key, LEASE).await).await;
    assert_eq!(state(&done).await, StoreClaim::Done);
    // It makes no difference whether the first call arrived.
    assert!(answered(async || patient.complete(&held, token, DAY).await).await);
    assert_eq!(state(&held).await, StoreClaim::Done);
}

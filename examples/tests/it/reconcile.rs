//! A JetStream stream loses confirmed messages, and `reconcile` restores them from each database.
//!
//! The stream loses its beginning and single later messages, as after a disk error. The server remembers the ids of lost messages until its duplicate
//! window has passed, so a message may be restored only at a later attempt.

use std::collections::HashSet;
use std::time::Duration;

use outbox::testing::backend_url;
use outbox_core::relay::reconcile::{self, Reconciled, Span};
use outbox_core::{
    DomainEvent, EventDescriptor, MessageId, OutboxAdmin as _, Relay, Selection, StreamLog as _,
};
use outbox_nats::async_nats::jetstream::{self, stream::Stream};
use outbox_nats::{EventStream, JetStreamPublisher, connect, connect_options};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore, TableNames, migration};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend};
use time::OffsetDateTime;

const TANKS: u32 = 30;
const LEVELS: u32 = 10;
/// The stream loses all messages before this one.
const FIRST_LEFT: u64 = 101;
/// Of the remaining messages it loses one in this many.
const ONE_IN: u64 = 7;
const WINDOW: Duration = Duration::from_millis(500);

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "tank", name = "filled")]
struct Filled {
    #[domain_event(aggregate_id)]
    tank: u32,
    level: u32,
}

/// Tables and a stream for this test only.
struct Place {
    db: DatabaseConnection,
    names: TableNames,
    store: SqlStore,
    publisher: JetStreamPublisher,
    stream: Stream,
}

impl Place {
    async fn new(database_url: &str, nats_url: &str) -> Self {
        let name = format!("t{}", &MessageId::fresh().to_string().replace('-', "")[14..]);
        let db = Database::connect(database_url).await.unwrap();
        let names = match db.get_database_backend() {
            DbBackend::Postgres => {
                let schema = format!("CREATE SCHEMA {name}");
                db.execute_unprepared(&schema).await.unwrap();
                TableNames::new().with_schema(&name).unwrap()
            }
            _ => TableNames::new().with_prefix(format!("{name}_")).unwrap(),
        };
        migration::migrate_with(&db, &names).await.unwrap();

        let client = connect(nats_url, connect_options()).await.unwrap();
        let stream = EventStream::new(&name)
            .with_prefix(&name)
            .unwrap()
            .with_duplicate_window(WINDOW);
        let filled: [&'static EventDescriptor; 1] = [&Filled::DESCRIPTORS[0]];
        stream.provision_for(&client, filled).await.unwrap();
        let jetstream = jetstream::new(client.clone());
        Self {
            store: SqlStore::new(db.clone()).with_names(&names).unwrap(),
            db,
            names,
            publisher: stream.publisher(client),
            stream: jetstream.get_stream(&name).await.unwrap(),
        }
    }

    async fn record_all(&self) {
        let config = OutboxConfig::default().with_names(self.names.clone());
        let outbox = OutboxConnection::new(self.db.clone(), config);
        for level in 1..=LEVELS {
            let tx = outbox.begin().await.unwrap();
            let events: Vec<_> = (0..TANKS).map(|tank| Filled { tank, level }).collect();
            outbox_sea_orm::record(&tx, events).await.unwrap();
            tx.commit().await.unwrap();
        }
    }

    async fn on_stream(&self) -> HashSet<MessageId> {
        let from = OffsetDateTime::UNIX_EPOCH;
        self.publisher.message_ids(from).await.unwrap()
    }

    async fn missing(&self) -> Reconciled {
        reconcile::missing(&self.store, &self.publisher, span())
            .await
            .unwrap()
    }
}

/// Longer ago than the span begins: nothing is refused.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

fn span() -> Span {
    let now = OffsetDateTime::now_utc();
    Span {
        from: now - Duration::from_secs(3600),
        until: now + Duration::from_secs(3600),
    }
}

async fn what_a_stream_lost_comes_back_once(database_url: &str) {
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let place = Place::new(database_url, &nats_url).await;
    place.record_all().await;
    let all = u64::from(TANKS * LEVELS);
    let relay = Relay::new(place.store.clone(), place.publisher.clone());
    assert_eq!(relay.drain().await.unwrap().published, all);
    let published = place.on_stream().await;
    assert_eq!(published.len() as u64, all);
    assert_eq!(place.missing().await.missing, 0);

    place.stream.purge().sequence(FIRST_LEFT).await.unwrap();
    let mut lost = FIRST_LEFT - 1;
    for sequence in (FIRST_LEFT..=all).step_by(ONE_IN as usize) {
        assert!(place.stream.delete_message(sequence).await.unwrap());
        lost += 1;
    }
    let found = place.missing().await;
    assert_eq!((found.compared, found.missing, found.published), (all, lost, 0));

    let mut restored = 0;
    let restore = async {
        while restored < lost {
            let done = reconcile::reconcile(
                &place.store,
                &place.publisher,
                &place.publisher,
                span(),
                REMEMBERED,
            )
            .await;
            let done = done.unwrap();
            assert_eq!(
                (done.missing, done.published + done.dropped),
                (lost - restored, lost - restored)
            );
            restored += done.published;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), restore)
        .await
        .unwrap();
    assert_eq!(place.on_stream().await, published);
    let stored = place.stream.get_info().await.unwrap().state.messages;
    assert_eq!(stored, all, "nothing is there twice");
    assert_eq!(place.missing().await.missing, 0);
    let rows = place
        .store
        .list(&Selection::all(), std::num::NonZeroU32::MAX)
        .await;
    assert!(
        rows.unwrap()
            .iter()
            .all(|row| row.published_at.is_some() && row.attempts == 0),
        "the outbox is as it was"
    );
}

#[tokio::test]
async fn what_a_stream_lost_comes_back_from_postgres() {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
        what_a_stream_lost_comes_back_once(&url).await;
    }
}

#[tokio::test]
async fn what_a_stream_lost_comes_back_from_mariadb() {
    if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
        what_a_stream_lost_comes_back_once(&url).await;
    }
}

#[tokio::test]
async fn what_a_stream_lost_comes_back_from_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", dir.path().join("outbox.db").display());
    what_a_stream_lost_comes_back_once(&url).await;
}

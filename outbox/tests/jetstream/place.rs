//! A stream and a database for one test, on real servers.

use std::time::Duration;

use outbox::inbox::{ConsumerState, InboxHealthCheck, InboxReport};
use outbox::nats::async_nats::Client;
use outbox::nats::async_nats::jetstream::consumer::Info;
use outbox::nats::async_nats::jetstream::{self, stream::Stream};
use outbox::prelude::*;
use outbox::testing::{backend_url, eventually};
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, Statement, TransactionTrait as _,
};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const NEWEST: &str = "OUTBOX_TEST_NATS_URL";
pub(crate) const OLDEST: &str = "OUTBOX_TEST_NATS_OLD_URL";

/// Stream and database of a test. Effects are rows of the table `noted`, which has no unique key.
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) stream: EventStream,
    pub(crate) db: DatabaseConnection,
    relay_db: DatabaseConnection,
    server: DatabaseConnection,
    remove: String,
}

impl Place {
    /// Opens stream and database. `None` if a server is missing: the test is skipped.
    pub(crate) async fn open(nats: &'static str) -> Option<Self> {
        let (nats, url) = (backend_url(nats)?, backend_url("OUTBOX_TEST_POSTGRES_URL")?);
        let name = format!("t{}", &Uuid::now_v7().simple().to_string()[14..]);
        let stream = EventStream::new(&name).with_prefix(&name).unwrap();
        let client = stream.connect(nats).await.unwrap();
        stream.provision(&client).await.unwrap();

        let server = pool(url.clone(), None).await;
        let create = format!("CREATE SCHEMA {name}");
        server.execute_unprepared(&create).await.unwrap();
        let db = pool(url.clone(), Some(&name)).await;
        outbox::migrate(&db).await.unwrap();
        db.execute_unprepared("CREATE TABLE noted (consumer VARCHAR(64), what VARCHAR(255))")
            .await
            .unwrap();
        Some(Self {
            client,
            stream,
            relay_db: pool(url, Some(&name)).await,
            db,
            server,
            remove: format!("DROP SCHEMA {name} CASCADE"),
        })
    }

    pub(crate) async fn publish<E: DomainEvent>(&self, events: impl IntoIterator<Item = E>) {
        let tx = self.db.begin().await.unwrap();
        let events: Vec<_> = events.into_iter().collect();
        record(&tx, events).await.unwrap();
        tx.commit().await.unwrap();
        let relay = self.stream.relay(self.relay_db.clone(), self.client.clone());
        relay.drain().await.unwrap();
    }

    pub(crate) async fn noted(&self, consumer: &str) -> Vec<String> {
        let sql = format!("SELECT what FROM noted WHERE consumer = '{consumer}' ORDER BY what");
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        let rows = self.db.query_all_raw(statement).await.unwrap();
        rows.iter().map(|row| row.try_get("", "what").unwrap()).collect()
    }

    pub(crate) async fn stream_on_server(&self) -> Stream {
        let jetstream = jetstream::new(self.client.clone());
        jetstream.get_stream(self.stream.name()).await.unwrap()
    }

    pub(crate) async fn durable(&self, consumer: &str) -> Option<Info> {
        self.stream_on_server().await.consumer_info(consumer).await.ok()
    }

    /// Waits until a consumer has acknowledged every message on the stream, after `deliveries`
    /// deliveries.
    pub(crate) async fn until_acknowledged(&self, consumer: &str, deliveries: u64) {
        eventually("the last acknowledgement", async || {
            self.durable(consumer).await.is_some_and(|info| {
                info.num_pending == 0
                    && info.num_ack_pending == 0
                    && info.delivered.consumer_sequence == deliveries
            })
        })
        .await;
    }

    pub(crate) async fn close(self) {
        let jetstream = jetstream::new(self.client.clone());
        jetstream.delete_stream(self.stream.name()).await.unwrap();
        self.db.close().await.unwrap();
        self.relay_db.close().await.unwrap();
        self.server.execute_unprepared(&self.remove).await.unwrap();
    }
}

async fn pool(url: String, schema: Option<&str>) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(10).sqlx_logging(false);
    if let Some(schema) = schema {
        options.set_schema_search_path(schema);
    }
    Database::connect(options).await.unwrap()
}

pub(crate) async fn note(tx: &Tx<'_>, consumer: &str, what: &str) -> Result<(), HandlerError> {
    let sql = format!("INSERT INTO noted (consumer, what) VALUES ('{consumer}', '{what}')");
    tx.execute_unprepared(&sql).await?;
    Ok(())
}

pub(crate) struct Process {
    shutdown: CancellationToken,
    run: JoinHandle<InboxReport>,
}

impl Process {
    pub(crate) fn start(inbox: Inbox<JetStreamSubscriber>) -> Self {
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let run = tokio::spawn(async move { inbox.run(token).await.unwrap() });
        Self { shutdown, run }
    }

    pub(crate) async fn stop(self) -> InboxReport {
        self.shutdown.cancel();
        tokio::time::timeout(SOON, self.run).await.unwrap().unwrap()
    }
}

pub(crate) fn is_paused(health: &InboxHealthCheck, consumer: &str) -> bool {
    let consumers = health.consumers();
    let found = consumers.iter().find(|found| found.consumer == consumer);
    found.is_some_and(|found| matches!(found.state, ConsumerState::Paused { .. }))
}

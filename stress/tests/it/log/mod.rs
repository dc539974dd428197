//! Log relays on a real PostgreSQL and nats-server, with rejections, lost slots, silent connections
//! and waiting commits.
//!
//! In the end the stream has exactly the writers' events, and first appearances are in commit order
//! per account. For killed relays, see `chaos.rs`.

mod failover;
mod invalidated;
mod modern;
mod proxy;
mod refused;
mod retained;
mod silent;
mod slots;
mod standby;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{DomainEvent, EventPolicy, Events, NewMessage, RelayConfig};
use outbox_log::{LogConfig, LogRelay, PostgresLog};
use outbox_nats::async_nats::header;
use outbox_nats::async_nats::jetstream::context::Context;
use outbox_nats::async_nats::jetstream::{Message, stream};
use outbox_nats::{EventStream, JetStreamPublisher};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore};
use outbox_stress::patient;
use outbox_test_servers::{Failure, SOON, Server};
use outbox_testing::backend_url;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, Statement};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "credited")]
struct Credited {
    #[domain_event(aggregate_id)]
    account: String,
    number: u64,
    filler: String,
}

struct Arrived {
    id: String,
    account: String,
    number: u64,
    stored_at: OffsetDateTime,
}

impl Arrived {
    fn read(message: &Message) -> Result<Self, Failure> {
        let event: Credited = serde_json::from_slice(&message.payload)?;
        let headers = message.headers.as_ref().unwrap();
        Ok(Self {
            id: headers.get(header::NATS_MESSAGE_ID).unwrap().to_string(),
            stored_at: message.info()?.published,
            account: event.account,
            number: event.number,
        })
    }
}

pub(super) type Relay = LogRelay<SqlStore, PostgresLog, JetStreamPublisher>;

struct Place {
    server: Option<Server>,
    name: String,
    url: String,
    db: DatabaseConnection,
    client: outbox_nats::async_nats::Client,
    stream: EventStream,
    committed: Mutex<BTreeMap<String, u64>>,
}

impl Place {
    async fn shared() -> Option<Self> {
        let url = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL")?;
        let nats_url = backend_url("OUTBOX_TEST_NATS_URL")?;
        Some(Self::make(None, url, &nats_url).await)
    }

    async fn private(settings: &[&str]) -> Option<Self> {
        let program = backend_url("OUTBOX_TEST_POSTGRES_BIN")?;
        let nats_url = backend_url("OUTBOX_TEST_NATS_URL")?;
        let settings = [&["wal_level=logical"], settings].concat();
        let mut server = Server::postgres(Path::new(&program), &settings).unwrap();
        server.start().await.unwrap();
        server.connect(1).await.unwrap().close().await.unwrap();
        let url = server.url().to_owned();
        Some(Self::make(Some(server), url, &nats_url).await)
    }

    async fn make(server: Option<Server>, url: String, nats_url: &str) -> Self {
        let name = format!("t{}", &Uuid::now_v7().simple().to_string()[14..]);
        let admin = Database::connect(&url).await.unwrap();
        admin
            .execute_unprepared(&format!("CREATE SCHEMA {name}"))
            .await
            .unwrap();
        let stream = EventStream::new(&name).with_prefix(&name).unwrap();
        let client = patient::provision(&stream, nats_url).await.unwrap();
        let place = Self {
            db: pool(&url, &name).await,
            server,
            name,
            url,
            client,
            stream,
            committed: Mutex::default(),
        };
        outbox_sea_orm::migration::migrate(&place.db).await.unwrap();
        patient::init(&place.log()).await.unwrap();
        place
    }

    fn log(&self) -> PostgresLog {
        self.log_at(&self.url, &self.db)
    }

    fn log_at(&self, url: &str, db: &DatabaseConnection) -> PostgresLog {
        let log = PostgresLog::new(db.clone(), url).unwrap();
        log.named(&self.name).unwrap()
    }

    fn relay(&self) -> Relay {
        self.relay_of(self.log(), &self.db)
    }

    fn relay_of(&self, log: PostgresLog, db: &DatabaseConnection) -> Relay {
        let log_config = LogConfig::default().checkpoint_every(Duration::from_millis(100));
        let publisher = self.stream.publisher(self.client.clone());
        LogRelay::new(SqlStore::new(db.clone()), log, publisher)
            .with_config(config().lease_ttl(Duration::from_millis(1_500)))
            .with_log_config(log_config)
    }

    async fn run(&self, scenario: impl Future<Output = ()>) {
        run_relay(&self.relay(), scenario).await;
    }

    async fn write(&self, accounts: &[&str], each: u64) {
        for _ in 0..each {
            for account in accounts {
                self.write_with(account, 1, |_| {}).await;
            }
        }
    }

    async fn write_with(&self, account: &str, count: u64, change: impl Fn(&mut Recorded)) {
        self.try_write_with(account, count, change).await.unwrap();
    }

    async fn try_write_with(
        &self,
        account: &str,
        count: u64,
        change: impl Fn(&mut Recorded),
    ) -> Result<(), Box<dyn std::error::Error>> {
        let before = self.committed(account);
        let mut events = Events::new();
        for number in before + 1..=before + count {
            let mut recorded = Recorded::default();
            change(&mut recorded);
            let event = Credited {
                account: account.to_owned(),
                number,
                filler: "x".repeat(recorded.filler),
            };
            let message = NewMessage::from_event(&event).unwrap();
            events.push(match recorded.available_at {
                Some(at) => message.available_at(at),
                None => message,
            });
        }
        let outbox = OutboxConnection::new(self.db.clone(), OutboxConfig::default());
        let tx = outbox.begin().await?;
        outbox_sea_orm::record(&tx, events).await?;
        tx.commit().await?;
        *self
            .committed
            .lock()
            .unwrap()
            .entry(account.to_owned())
            .or_default() += count;
        Ok(())
    }

    fn committed(&self, account: &str) -> u64 {
        let committed = self.committed.lock().unwrap();
        committed.get(account).copied().unwrap_or_default()
    }

    fn context(&self) -> Context {
        patient::context(self.client.clone())
    }

    async fn jetstream(&self) -> stream::Stream {
        self.context().get_stream(&self.name).await.unwrap()
    }

    async fn reconfigure(&self, change: impl FnOnce(&mut stream::Config)) {
        let mut config = self.jetstream().await.get_info().await.unwrap().config;
        change(&mut config);
        self.context().update_stream(config).await.unwrap();
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let stream = self.jetstream().await;
        let arrived = patient::read_all(&stream, Arrived::read).await;
        arrived.unwrap()
    }

    async fn numbers(&self) -> BTreeMap<String, Vec<u64>> {
        let (mut numbers, mut known) = (BTreeMap::<String, Vec<u64>>::new(), HashSet::new());
        for Arrived { account, number, .. } in self.arrived().await {
            if known.insert((account.clone(), number)) {
                numbers.entry(account).or_default().push(number);
            }
        }
        numbers
    }

    async fn arrived_of(&self, accounts: &[&str]) {
        until("an event did not arrive", async || {
            let numbers = self.numbers().await;
            let count = |account: &&str| numbers.get(*account).map_or(0, |numbers| numbers.len() as u64);
            accounts
                .iter()
                .all(|account| count(account) >= self.committed(account))
        })
        .await;
    }

    async fn published(&self) {
        let accounts: Vec<String> = self.committed.lock().unwrap().keys().cloned().collect();
        let accounts: Vec<&str> = accounts.iter().map(String::as_str).collect();
        self.arrived_of(&accounts).await;
    }

    async fn assert_balanced(&self) {
        let committed = self.committed.lock().unwrap().clone();
        let expected: BTreeMap<String, Vec<u64>> = committed
            .into_iter()
            .map(|(account, count)| (account, (1..=count).collect()))
            .collect();
        assert_eq!(self.numbers().await, expected);
    }

    async fn execute(&self, sql: &str) {
        let done = self.db.execute_unprepared(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        number(&self.db, sql).await
    }

    async fn in_table(&self) -> i64 {
        self.number("SELECT count(*) FROM outbox_messages WHERE status IN (0, 3)")
            .await
    }

    async fn rows(&self, status: i16) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM outbox_messages WHERE status = {status}"
        ))
        .await
    }

    async fn close(self) {
        self.context().delete_stream(&self.name).await.unwrap();
        if self.server.is_none() {
            self.log().drop().await.unwrap();
            self.execute(&format!("DROP SCHEMA {} CASCADE", self.name)).await;
        }
    }
}

#[derive(Default)]
struct Recorded {
    filler: usize,
    available_at: Option<OffsetDateTime>,
}

fn config() -> RelayConfig {
    let backoff = Backoff {
        min: Duration::from_millis(20),
        max: Duration::from_millis(200),
    };
    RelayConfig::default()
        .poll_max(Duration::from_millis(100))
        .policy(EventPolicy::default().backoff(backoff))
        .backoff(backoff)
}

async fn pool(url: &str, schema: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(12)
        .sqlx_logging(false)
        .set_schema_search_path(schema);
    Database::connect(options).await.unwrap()
}

async fn number(db: &DatabaseConnection, sql: &str) -> i64 {
    let sql = format!("SELECT ({sql})::bigint AS n");
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get("", "n").unwrap()
}

async fn run_relay(relay: &Relay, scenario: impl Future<Output = ()>) {
    let shutdown = CancellationToken::new();
    let scenario = async {
        scenario.await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The relay detects a silent connection after 40 s.
    let outcome = tokio::time::timeout(2 * SOON, wait).await;
    outcome.unwrap_or_else(|_| panic!("{what}"));
}

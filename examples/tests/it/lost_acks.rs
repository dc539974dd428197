//! If acknowledgements are lost, messages are not dead-lettered, and each effect happens once, even
//! for a retried dead letter.
//!
//! The losses exceed the attempts of a message. First, either the user may not publish on
//! `$JS.ACK.>`, or a proxy drops each `+ACK`. Then the consumers run without losses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use outbox::testing::{MemoryDedupStore, backend_url, eventually};
use outbox_core::{DomainEvent, EventDescriptor, MessageId, NewMessage, Publisher as _};
use outbox_inbox::{
    DeadLetterSelection, DeadLetters, Event, HandlerError, HandlerState, Inbox, InboxConfig, Router, Tx,
    idempotent_handler,
};
use outbox_nats::async_nats::{Client, jetstream};
use outbox_nats::{EventStream, JetStreamSubscriber, connect, connect_options};
use outbox_sea_orm::TableNames;
use outbox_test_servers::Server;
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::lossy::Lossy;

const STREAM: &str = "EVENTS";
/// Time until redelivery. The time limit of a handler is half of it, and a handler over the limit
/// would leave no effect.
const ACK_WAIT: Duration = Duration::from_secs(4);
const ATTEMPTS: u32 = 4;
const PARCELS: [u64; 3] = [1, 2, 3];
const BROKEN: u64 = 4;

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "parcel", name = "sent")]
struct Sent {
    #[domain_event(aggregate_id)]
    parcel: u64,
}

fn number(event: &Sent) -> String {
    event.parcel.to_string()
}

#[derive(Debug, Clone)]
struct Depot {
    db: DatabaseConnection,
    effects: String,
    markers: String,
    mended: bool,
    handled: MemoryDedupStore,
}

impl Depot {
    /// Records an effect without a unique key, so that a second effect is visible.
    async fn note<C>(&self, db: &C, consumer: &str, event: &Sent) -> Result<(), HandlerError>
    where
        C: sea_orm::ConnectionTrait,
    {
        if event.parcel == BROKEN && !self.mended {
            return Err(HandlerError::fatal("no address"));
        }
        let (effects, parcel) = (&self.effects, event.parcel);
        db.execute_unprepared(&format!("INSERT INTO {effects} VALUES ('{consumer}', {parcel})"))
            .await?;
        Ok(())
    }

    async fn effects(&self, consumer: &str) -> Vec<i64> {
        let mut counts = Vec::new();
        for parcel in PARCELS.into_iter().chain([BROKEN]) {
            let of = format!(
                "{} WHERE consumer = '{consumer}' AND parcel = {parcel}",
                self.effects
            );
            counts.push(count(&self.db, &of).await);
        }
        counts
    }
}

async fn count(db: &DatabaseConnection, of: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {of}");
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

macro_rules! handlers {
    ($($name:ident: $consumer:literal, $strategy:ident $(($($key:tt)*))?;)*) => {$(
        #[idempotent_handler(consumer = $consumer, strategy = $strategy $(($($key)*))?)]
        async fn $name(event: Event<Sent>, tx: Tx<'_>, depot: HandlerState<Depot>) -> Result<(), HandlerError> {
            depot.note(&tx, $consumer, &event).await
        }
    )*};
}

handlers! {
    by_message_id: "by_message_id", message_id;
    by_sequence: "by_sequence", sequence;
    by_key: "by_key", key(self::number);
    by_nature: "by_nature", natural;
}

#[idempotent_handler(consumer = "by_nature_outside", strategy = natural)]
async fn by_nature_outside(event: Event<Sent>, depot: HandlerState<Depot>) -> Result<(), HandlerError> {
    depot.note(&depot.db, "by_nature_outside", &event).await
}

/// The store in memory records finished messages. The database is the external system.
#[idempotent_handler(consumer = "by_external", strategy = external)]
async fn by_external(event: Event<Sent>, depot: HandlerState<Depot>) -> Result<(), HandlerError> {
    depot.note(&depot.db, "by_external", &event).await
}

#[idempotent_handler(consumer = "by_constraint", strategy = constraint("markers_pkey", "PRIMARY"))]
async fn by_constraint(
    event: Event<Sent>,
    tx: Tx<'_>,
    depot: HandlerState<Depot>,
) -> Result<(), HandlerError> {
    let (markers, parcel) = (&depot.markers, event.parcel);
    tx.execute_unprepared(&format!("INSERT INTO {markers} (id) VALUES ({parcel})"))
        .await?;
    depot.note(&tx, "by_constraint", &event).await
}

const CONSUMERS: [&str; 7] = [
    "by_message_id",
    "by_sequence",
    "by_key",
    "by_nature",
    "by_nature_outside",
    "by_external",
    "by_constraint",
];

fn router() -> Router {
    Router::new()
        .handler::<by_message_id>()
        .handler::<by_sequence>()
        .handler::<by_key>()
        .handler::<by_nature>()
        .handler::<by_nature_outside>()
        .handler::<by_external>()
        .handler::<by_constraint>()
}

async fn start(binary: &Path) -> Server {
    let users = "{ user: free, password: secret }, \
                 { user: mute, password: secret, permissions: { publish: { deny: [\"$JS.ACK.>\"] } } }";
    let server = Server::nats(binary).unwrap();
    let config = format!("authorization {{ users = [{users}] }}");
    let mut server = server.with_config(&config).unwrap();
    server.start().await.unwrap();
    server
}

async fn connect_to(url: &str, user: &str) -> Client {
    let options = connect_options().user_and_password(user.to_owned(), "secret".to_owned());
    connect(url, options.ignore_discovered_servers()).await.unwrap()
}

async fn depot(database_url: &str) -> (Depot, TableNames) {
    let name = format!("t{}", &MessageId::fresh().to_string().replace('-', "")[14..]);
    let db = Database::connect(database_url).await.unwrap();
    let (names, prefix) = match db.get_database_backend() {
        DbBackend::Postgres => {
            let schema = format!("CREATE SCHEMA {name}");
            db.execute_unprepared(&schema).await.unwrap();
            (TableNames::new().with_schema(&name).unwrap(), format!("{name}."))
        }
        _ => (
            TableNames::new().with_prefix(format!("{name}_")).unwrap(),
            format!("{name}_"),
        ),
    };
    outbox_inbox::migration::migrate_with(&db, &names).await.unwrap();
    let (effects, markers) = (format!("{prefix}effects"), format!("{prefix}markers"));
    for table in [
        format!("{effects} (consumer VARCHAR(64), parcel BIGINT)"),
        format!("{markers} (id BIGINT PRIMARY KEY)"),
    ] {
        db.execute_unprepared(&format!("CREATE TABLE {table}"))
            .await
            .unwrap();
    }
    let depot = Depot {
        db,
        effects,
        markers,
        mended: false,
        handled: MemoryDedupStore::new(),
    };
    (depot, names)
}

fn inbox(
    depot: &Depot,
    names: &TableNames,
    client: Client,
    config: InboxConfig,
) -> Inbox<JetStreamSubscriber> {
    Inbox::new(depot.db.clone(), EventStream::new(STREAM).subscriber(client))
        .with_router(router())
        .with_names(names.clone())
        .with_config(config)
        .with_dedup_store(depot.handled.clone())
        .with_state(depot.clone())
}

async fn publish(client: &Client) {
    let sent: [&'static EventDescriptor; 1] = [&Sent::DESCRIPTORS[0]];
    let stream = EventStream::new(STREAM);
    stream.provision_for(client, sent).await.unwrap();
    let publisher = stream.publisher(client.clone());
    for parcel in PARCELS.into_iter().chain([BROKEN]) {
        let message = NewMessage::from_event(&Sent { parcel }).unwrap();
        let message = message.into_message(Some(1), OffsetDateTime::now_utc());
        publisher.publish(&message).await.unwrap();
    }
}

async fn run_until_delivered(inbox: Inbox<JetStreamSubscriber>, client: &Client, times: u32) {
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { inbox.run(shutdown).await.unwrap() }
    });
    let stream = jetstream::new(client.clone()).get_stream(STREAM).await.unwrap();
    let messages = 1 + PARCELS.len() as u64;
    for consumer in CONSUMERS {
        eventually(consumer, async || {
            let info = stream.consumer_info(consumer).await;
            info.is_ok_and(|info| info.delivered.consumer_sequence > messages * u64::from(times))
        })
        .await;
    }
    shutdown.cancel();
    run.await.unwrap();
}

fn config() -> InboxConfig {
    InboxConfig::default()
        .ack_wait(ACK_WAIT)
        .handler_timeout(ACK_WAIT / 2)
        .attempts_max(ATTEMPTS)
}

async fn denied_acknowledgements_leave_one_effect_each(binary: &Path, database_url: &str) {
    let server = start(binary).await;
    let mute = connect_to(server.url(), "mute").await;
    check(&server, mute, database_url, ATTEMPTS + 2).await;
}

/// The proxy drops acknowledgements until its end; later consumers do not use it.
async fn dropped_acknowledgements_leave_one_effect_each(binary: &Path, database_url: &str) {
    let server = start(binary).await;
    let proxy = Lossy::in_front_of(format!("127.0.0.1:{}", server.port())).await;
    let behind = connect_to(&proxy.url(), "free").await;
    check(&server, behind, database_url, ATTEMPTS + 1).await;
    let losses = CONSUMERS.len() * PARCELS.len() * usize::try_from(ATTEMPTS).unwrap();
    assert!(
        proxy.lost() > losses,
        "{} acknowledgements were lost",
        proxy.lost()
    );
}

async fn check(server: &Server, loser: Client, database_url: &str, deliveries: u32) {
    let free = connect_to(server.url(), "free").await;
    publish(&free).await;
    let (mut depot, names) = depot(database_url).await;
    let letters = DeadLetters::new(depot.db.clone()).with_names(names.clone());
    let rows = match depot.db.get_database_backend() {
        DbBackend::Postgres => depot.effects.replace(".effects", ".inbox_messages"),
        _ => depot.effects.replace("_effects", "_inbox_messages"),
    };

    let unheard = inbox(&depot, &names, loser, config());
    run_until_delivered(unheard, &free, deliveries).await;
    let dead_letters = letters.list(&DeadLetterSelection::all(), 100).await.unwrap();
    assert!(
        dead_letters.iter().all(|letter| letter.error == "no address"),
        "{dead_letters:#?}"
    );
    assert_eq!(dead_letters.len(), CONSUMERS.len());

    depot.mended = true;
    let mended = inbox(&depot, &names, free.clone(), config());
    mended.drain().await.unwrap();
    assert_eq!(
        letters.retry(&DeadLetterSelection::all()).await.unwrap(),
        CONSUMERS.len() as u64
    );
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { mended.run(shutdown).await.unwrap() }
    });
    eventually("the end of all dead letters", async || {
        letters.count(&DeadLetterSelection::all()).await.unwrap() == 0
    })
    .await;
    shutdown.cancel();
    run.await.unwrap();

    for consumer in CONSUMERS {
        // A `natural` handler runs twice, because the first delivery leaves no record.
        let expected = if consumer.starts_with("by_nature") { 2 } else { 1 };
        assert_eq!(
            depot.effects(consumer).await,
            [expected, expected, expected, 1],
            "{consumer}"
        );
    }
    let failed = format!("{rows} WHERE status = 0");
    assert_eq!(
        count(&depot.db, &failed).await,
        0,
        "failed rows of handled messages"
    );
}

fn current() -> Option<PathBuf> {
    backend_url("OUTBOX_TEST_NATS_CLUSTER_BIN").map(PathBuf::from)
}

fn old() -> Option<PathBuf> {
    backend_url("OUTBOX_TEST_NATS_OLD_BIN").map(PathBuf::from)
}

#[tokio::test]
async fn denied_acknowledgements_on_postgres() {
    if let (Some(binary), Some(url)) = (current(), backend_url("OUTBOX_TEST_POSTGRES_URL")) {
        denied_acknowledgements_leave_one_effect_each(&binary, &url).await;
    }
}

#[tokio::test]
async fn denied_acknowledgements_on_mariadb() {
    if let (Some(binary), Some(url)) = (current(), backend_url("OUTBOX_TEST_MARIADB_URL")) {
        denied_acknowledgements_leave_one_effect_each(&binary, &url).await;
    }
}

#[tokio::test]
async fn denied_acknowledgements_by_an_old_server() {
    if let (Some(binary), Some(url)) = (old(), backend_url("OUTBOX_TEST_POSTGRES_URL")) {
        denied_acknowledgements_leave_one_effect_each(&binary, &url).await;
    }
}

#[tokio::test]
async fn dropped_acknowledgements_on_postgres() {
    if let (Some(binary), Some(url)) = (current(), backend_url("OUTBOX_TEST_POSTGRES_URL")) {
        dropped_acknowledgements_leave_one_effect_each(&binary, &url).await;
    }
}

#[tokio::test]
async fn dropped_acknowledgements_by_an_old_server_on_mariadb() {
    if let (Some(binary), Some(url)) = (old(), backend_url("OUTBOX_TEST_MARIADB_URL")) {
        dropped_acknowledgements_leave_one_effect_each(&binary, &url).await;
    }
}

//! Services in other languages save orders, the relay publishes their events, and handlers in Rust
//! and in `consumer.py` apply the events.
//!
//! The programs of `examples/polyglot` run as processes on a separate database. A service in Rust
//! then changes each order. `cargo xtask polyglot` runs further languages.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use futures_util::future::join_all;
use outbox::prelude::*;
use outbox::testing::{backend_url, eventually};
use outbox::{RunReport, migrate};
use outbox_core::EventDescriptor;
use outbox_inbox::Router;
use outbox_nats::async_nats::{Client, jetstream, jetstream::stream::Stream};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, FromQueryResult, Statement};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::own_database::OwnDatabase;

const ORDERS: i32 = 3;
const CHANGES: i32 = 2;
const EVENTS: u64 = (ORDERS * (1 + CHANGES)) as u64;
const IN_RUST: &str = "polyglot-ledger";
const IN_PYTHON: &str = "shipping-py";

/// Product of an order that the database rejects at commit, after the event was recorded.
const REFUSED: &str = "nothing-that-we-sell";

/// The tables have no unique keys, so that a second effect is visible.
const TABLES: &str = "
    CREATE TABLE products (name text PRIMARY KEY);
    CREATE TABLE orders (
        id serial PRIMARY KEY,
        product text NOT NULL REFERENCES products DEFERRABLE INITIALLY DEFERRED,
        units int NOT NULL
    );
    CREATE TABLE ledger (n bigserial, order_id int NOT NULL, entry text NOT NULL);
    CREATE TABLE shipments (order_id int NOT NULL);
    INSERT INTO products SELECT 'product-' || n FROM generate_series(1, 3) AS n";

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct Placed {
    #[domain_event(aggregate_id)]
    order_id: i32,
    product: String,
    units: i32,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "changed")]
struct Changed {
    #[domain_event(aggregate_id)]
    order_id: i32,
    change: i32,
}

async fn enter(tx: &Tx<'_>, order_id: i32, entry: String) -> Result<(), HandlerError> {
    let sql = "INSERT INTO ledger (order_id, entry) VALUES ($1, $2)";
    let values = [order_id.into(), entry.into()];
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    tx.execute_raw(statement).await?;
    Ok(())
}

#[idempotent_handler(consumer = "polyglot-ledger")]
async fn enter_placed(event: Event<Placed>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let entry = format!("placed {} {}", event.product, event.units);
    enter(&tx, event.order_id, entry).await
}

#[idempotent_handler(consumer = "polyglot-ledger")]
async fn enter_changed(event: Event<Changed>, tx: Tx<'_>) -> Result<(), HandlerError> {
    enter(&tx, event.order_id, format!("changed {}", event.change)).await
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("polyglot")
}

fn program(name: impl AsRef<OsStr>, script: &Path) -> Command {
    let mut command = Command::new(name);
    command.arg(script).kill_on_drop(true).stdin(Stdio::null());
    command
}

struct Python {
    modules: String,
}

impl Python {
    fn find() -> Option<Self> {
        let modules = backend_url("OUTBOX_TEST_PYTHON_MODULES")?;
        Some(Self { modules })
    }

    fn run(&self, script: &str) -> Command {
        let mut command = program("python3", &folder().join(script));
        command
            .env("PYTHONPATH", &self.modules)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// A folder with Node modules, because Node finds modules only in the service's folder.
struct Node {
    program: String,
    folder: TempDir,
}

impl Node {
    fn find() -> Option<Self> {
        let program = backend_url("OUTBOX_TEST_NODE_BIN")?;
        let modules = backend_url("OUTBOX_TEST_NODE_MODULES")?;
        let own = TempDir::new().unwrap();
        for file in ["order_service.js", "package.json"] {
            std::fs::copy(folder().join("node").join(file), own.path().join(file)).unwrap();
        }
        std::os::unix::fs::symlink(modules, own.path().join("node_modules")).unwrap();
        Some(Self { program, folder: own })
    }

    fn run(&self) -> Command {
        program(&self.program, &self.folder.path().join("order_service.js"))
    }
}

struct Place {
    own: OwnDatabase,
    db: DatabaseConnection,
    nats_url: String,
    client: Client,
    stream: EventStream,
    name: String,
}

struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<RunReport>,
}

impl Running {
    async fn stop(self) -> (u64, u64, u64) {
        self.shutdown.cancel();
        let report = self.task.await.unwrap();
        let (relay, inbox) = (&report.relays[0], &report.inboxes[0]);
        (relay.published, inbox.handled, inbox.duplicates)
    }
}

impl Place {
    async fn create() -> Option<Self> {
        let nats_url = backend_url("OUTBOX_TEST_NATS_URL")?;
        let own = OwnDatabase::create("polyglot").await?;
        let db = Database::connect(&own.url).await.unwrap();
        migrate(&db).await.unwrap();
        outbox_sea_orm::migration::writers::migrate(&db).await.unwrap();
        db.execute_unprepared(TABLES).await.unwrap();
        let name = format!("polyglot-{}", uuid::Uuid::now_v7().simple());
        let stream = EventStream::new(&name).with_prefix(&name).unwrap();
        let client = stream.connect(nats_url.as_str()).await.unwrap();
        let events: [&'static EventDescriptor; 2] = [&Placed::DESCRIPTORS[0], &Changed::DESCRIPTORS[0]];
        stream.provision_for(&client, events).await.unwrap();
        Some(Self {
            own,
            db,
            nats_url,
            client,
            stream,
            name,
        })
    }

    fn database_url(&self) -> String {
        self.own.url.replacen("postgres://", "postgresql://", 1)
    }

    fn start(&self) -> Running {
        let relay = self.stream.relay(self.db.clone(), self.client.clone());
        let router = Router::new().handler::<enter_placed>().handler::<enter_changed>();
        let inbox = self
            .stream
            .inbox(self.db.clone(), self.client.clone())
            .with_router(router);
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let runner = Runner::new().with_relay(relay).with_inbox(inbox);
        let task = tokio::spawn(async move { runner.run_until(token).await.unwrap() });
        Running { shutdown, task }
    }

    fn start_consumer(&self, python: &Python) -> Child {
        let mut consumer = python.run("python/consumer.py");
        consumer
            .env("DATABASE_URL", self.database_url())
            .env("NATS_URL", &self.nats_url)
            .env("STREAM", &self.name)
            .env("FILTER", format!("{}.order.*.placed", self.name));
        consumer.stdout(std::io::stderr()).spawn().unwrap()
    }

    async fn order(&self, mut service: Command, product: &str, units: i32) -> Output {
        service
            .args([product, &units.to_string()])
            .env("DATABASE_URL", self.database_url());
        service.output().await.unwrap()
    }

    async fn save_orders(&self, service: impl Fn() -> Command) -> Vec<(String, i32)> {
        let wanted: Vec<_> = (1..=ORDERS).map(|n| (format!("product-{n}"), 10 * n)).collect();
        let saving = wanted
            .iter()
            .map(|(product, units)| self.order(service(), product, *units));
        let refused = self.order(service(), REFUSED, 1);
        let (saved, refused) = tokio::join!(join_all(saving), refused);
        for output in saved {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && why.contains("orders_product_fkey"),
            "{why}"
        );
        wanted
    }

    async fn change_orders(&self, ids: &[i32]) {
        let outbox = OutboxConnection::new(self.db.clone(), OutboxConfig::default());
        for change in 1..=CHANGES {
            let tx = outbox.begin().await.unwrap();
            let changed = ids.iter().map(|&order_id| Changed { order_id, change });
            record(&tx, changed.collect::<Vec<_>>()).await.unwrap();
            tx.commit().await.unwrap();
        }
    }

    async fn log(&self) -> Stream {
        jetstream::new(self.client.clone())
            .get_stream(&self.name)
            .await
            .unwrap()
    }

    async fn acknowledged(&self, consumer: &str, deliveries: u64) {
        let log = self.log().await;
        let what = format!("the last of {deliveries} acknowledgements of {consumer}");
        eventually(&what, async || {
            let info = log.consumer_info(consumer).await;
            info.is_ok_and(|info| {
                let none_left = info.num_pending == 0 && info.num_ack_pending == 0;
                none_left && info.ack_floor.consumer_sequence >= deliveries
            })
        })
        .await;
    }

    async fn rows<T: FromQueryResult>(&self, sql: &str) -> Vec<T> {
        let statement = Statement::from_string(DbBackend::Postgres, sql);
        T::find_by_statement(statement).all(&self.db).await.unwrap()
    }

    async fn saved(&self) -> Vec<Saved> {
        self.rows("SELECT id, product, units FROM orders ORDER BY product")
            .await
    }

    async fn shipped(&self) -> Vec<i32> {
        let rows: Vec<Shipped> = self
            .rows("SELECT order_id FROM shipments ORDER BY order_id")
            .await;
        rows.into_iter().map(|row| row.order_id).collect()
    }

    /// Each saved order has all its effects in sequence, and no other order has an effect.
    async fn assert_each_has_taken_effect_once(&self, saved: &[Saved]) {
        for order in saved {
            let id = order.id;
            let sql = format!("SELECT entry FROM ledger WHERE order_id = {id} ORDER BY n");
            let entries: Vec<Entry> = self.rows(&sql).await;
            let entries: Vec<_> = entries.into_iter().map(|row| row.entry).collect();
            let mut expected = vec![format!("placed {} {}", order.product, order.units)];
            expected.extend((1..=CHANGES).map(|change| format!("changed {change}")));
            assert_eq!(entries, expected, "of order {id}");
        }
        let all: Vec<Entry> = self.rows("SELECT entry FROM ledger").await;
        assert_eq!(all.len() as u64, EVENTS);
    }

    async fn remove(self) {
        let streams = jetstream::new(self.client);
        streams.delete_stream(&self.name).await.unwrap();
        self.db.close().await.unwrap();
        self.own.remove().await;
    }
}

#[derive(FromQueryResult)]
struct Saved {
    id: i32,
    product: String,
    units: i32,
}

#[derive(FromQueryResult)]
struct Shipped {
    order_id: i32,
}

#[derive(FromQueryResult)]
struct Entry {
    entry: String,
}

async fn on_stream(stream: &Stream) -> BTreeMap<String, Vec<String>> {
    let mut numbers = BTreeMap::<_, Vec<_>>::new();
    for at in 1..=stream.get_info().await.unwrap().state.last_sequence {
        let message = stream.get_raw_message(at).await.unwrap();
        let sequence = message.headers.get("ce-sequence").unwrap().to_string();
        let aggregate = message.headers.get("ce-subject").unwrap().to_string();
        numbers.entry(aggregate).or_default().push(sequence);
    }
    numbers
}

/// An order and its event are saved together or not at all, and each consumer applies each event
/// once, in the order of the aggregate. Afterwards, recreated consumers receive all messages again.
async fn each_order_takes_effect_once(
    place: &Place,
    service: impl Fn() -> Command,
    consumer: Option<&Python>,
) {
    let running = place.start();
    let shipping = consumer.map(|python| place.start_consumer(python));
    let wanted = place.save_orders(service).await;
    let saved = place.saved().await;
    let list: Vec<_> = saved
        .iter()
        .map(|order| (order.product.clone(), order.units))
        .collect();
    assert_eq!(list, wanted, "each saved order once, without the rejected order");
    let mut ids: Vec<_> = saved.iter().map(|order| order.id).collect();
    ids.sort_unstable();

    place.change_orders(&ids).await;
    place.acknowledged(IN_RUST, EVENTS).await;
    if consumer.is_some() {
        place.acknowledged(IN_PYTHON, ORDERS as u64).await;
    }
    drop(shipping);
    assert_eq!(
        running.stop().await,
        (EVENTS, EVENTS, 0),
        "published, handled, known"
    );
    let log = place.log().await;
    let numbers: Vec<_> = (1..=1 + CHANGES).map(|number| number.to_string()).collect();
    let published = on_stream(&log).await;
    let of_ids: Vec<_> = published.keys().cloned().collect();
    let mut expected: Vec<_> = ids.iter().map(i32::to_string).collect();
    expected.sort();
    assert_eq!(of_ids, expected, "the stream has events of saved orders only");
    assert!(published.values().all(|order| *order == numbers), "{published:?}");
    place.assert_each_has_taken_effect_once(&saved).await;

    log.delete_consumer(IN_RUST).await.unwrap();
    let running = place.start();
    if let Some(python) = consumer {
        log.delete_consumer(IN_PYTHON).await.unwrap();
        let shipping = place.start_consumer(python);
        place.acknowledged(IN_PYTHON, ORDERS as u64).await;
        drop(shipping);
        assert_eq!(place.shipped().await, ids);
    }
    place.acknowledged(IN_RUST, EVENTS).await;
    assert_eq!(running.stop().await, (0, 0, EVENTS), "all was delivered again");
    place.assert_each_has_taken_effect_once(&saved).await;
}

#[tokio::test]
async fn python_service_orders_take_effect_once_in_rust_and_python() {
    let Some(python) = Python::find() else { return };
    let Some(place) = Place::create().await else {
        return;
    };
    let service = || python.run("python/order_service.py");
    each_order_takes_effect_once(&place, service, Some(&python)).await;
    place.remove().await;
}

#[tokio::test]
async fn node_service_orders_take_effect_once_in_rust() {
    let Some(node) = Node::find() else { return };
    let Some(place) = Place::create().await else {
        return;
    };
    each_order_takes_effect_once(&place, || node.run(), None).await;
    place.remove().await;
}

/// The script kills the consumer before and after its effect, and sends unreadable and foreign
/// events. Only the orders 1, 2 and 6 are valid.
#[tokio::test]
async fn killed_python_consumer_ships_each_readable_order_once() {
    let Some(python) = Python::find() else { return };
    let Some(place) = Place::create().await else {
        return;
    };
    let mut torment = python.run("torment.py");
    torment
        .env("DATABASE_URL", place.database_url())
        .env("NATS_URL", &place.nats_url);
    let output = torment.output().await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let shipped: Vec<Shipped> = place
        .rows("SELECT order_id FROM torment.shipments ORDER BY order_id")
        .await;
    let shipped: Vec<_> = shipped.into_iter().map(|row| row.order_id).collect();
    assert_eq!(shipped, [1, 2, 6]);
    place.remove().await;
}

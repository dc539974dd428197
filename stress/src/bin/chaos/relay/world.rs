//! The database and the stream of a run.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use outbox_core::DomainEvent;
use outbox_log::{LogError, PostgresLog};
use outbox_nats::EventStream;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, TableNames};
use outbox_stress::patient;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};
use sea_orm_migration::SchemaManager;
use uuid::Uuid;

use super::books::{Books, Committed};
use super::servers::Servers;
use super::written::Written;
use super::{Options, Way};
use crate::Result;
use crate::servers::{connect, names, new_name};

/// Messages per transaction.
const TOGETHER: usize = 20;
/// How soon something is tried again that a killed server did not answer, and for how long.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(180);

/// The recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "account", name = "credited")]
pub(crate) struct Credited {
    #[domain_event(aggregate_id)]
    pub(crate) account: u32,
    pub(crate) number: u32,
}

/// The database and the stream of a run. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) name: String,
    db: DatabaseConnection,
    names: TableNames,
    stream: Arc<jetstream::stream::Stream>,
    context: jetstream::Context,
    aggregates: u32,
    writers: u32,
    database_url: String,
    way: Way,
    /// Servers are killed, so calls fail.
    is_rough: bool,
    /// What was committed, for each aggregate in the order of the commits; the writers' own account of it.
    written: Arc<Mutex<Vec<Wrote>>>,
}

/// An event that a writer has tried to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrote {
    pub(crate) event: Credited,
    /// The commit was answered. Otherwise it may have happened.
    pub(crate) is_certain: bool,
}

impl World {
    /// Makes empty tables and an empty stream.
    pub(crate) async fn make(options: &Options, servers: &Servers) -> Result<Self> {
        let name = new_name();
        let db = connect(servers.database_url(), 8).await?;
        let names = names(&name)?;
        outbox_sea_orm::migration::migrate_with(&db, &names).await?;
        let stream = EventStream::new(&name).with_prefix(&name)?;
        let client = patient::provision(&stream, servers.nats_url()).await?;
        let context = patient::context(client);
        Ok(Self {
            stream: Arc::new(context.get_stream(&name).await?),
            context,
            name,
            db,
            names,
            aggregates: options.aggregates,
            writers: options.writers.max(1),
            database_url: servers.database_url().to_owned(),
            way: options.relay,
            is_rough: servers.own() > 0,
            written: Arc::default(),
        })
    }

    /// The log of the outbox.
    pub(crate) fn log(&self) -> std::result::Result<PostgresLog, LogError> {
        let log = PostgresLog::new(self.db.clone(), &self.database_url)?.named(&self.name)?;
        Ok(log.with_names(&self.names))
    }

    /// Records messages with these numbers, [`TOGETHER`] per transaction, going through the aggregates in turns. It takes at least `time`.
    pub(crate) async fn record(&self, numbers: Range<u32>, time: Duration) -> Result<()> {
        let writers = (0..self.writers).map(|writer| {
            let is_its = |number: &u32| number % self.aggregates % self.writers == writer;
            let numbers: Vec<u32> = numbers.clone().filter(is_its).collect();
            self.write(numbers, time)
        });
        futures_util::future::try_join_all(writers).await.map(drop)
    }

    async fn write(&self, numbers: Vec<u32>, time: Duration) -> Result<()> {
        let config = OutboxConfig::default().with_names(self.names.clone());
        let outbox = OutboxConnection::new(self.db.clone(), config);
        let chunks = numbers.chunks(TOGETHER);
        let pause = time / u32::try_from(chunks.len().max(1))?;
        for chunk in chunks {
            let events: Vec<Credited> = chunk
                .iter()
                .map(|number| Credited {
                    account: number % self.aggregates,
                    number: *number,
                })
                .collect();
            // What failed before the commit is rolled back, and may be tried again.
            let tx = self
                .patiently(async || {
                    let tx = outbox.begin().await?;
                    outbox_sea_orm::record(&tx, events.clone()).await?;
                    Ok(tx)
                })
                .await?;
            let committed = tx.commit().await;
            let is_certain = committed.is_ok();
            if !self.is_rough {
                committed?;
            }
            let wrote = events.into_iter().map(|event| Wrote { event, is_certain });
            self.wrote(|written| written.extend(wrote));
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    fn wrote<R>(&self, work: impl FnOnce(&mut Vec<Wrote>) -> R) -> R {
        work(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a statement, and returns how many rows it met.
    pub(crate) async fn execute(&self, sql: &str) -> Result<u64> {
        Ok(self.db.execute_unprepared(sql).await?.rows_affected())
    }

    /// Tries again while servers are killed.
    async fn patiently<R>(&self, mut attempt: impl AsyncFnMut() -> Result<R>) -> Result<R> {
        let began = Instant::now();
        loop {
            match attempt().await {
                Err(_) if self.is_rough && began.elapsed() < AGAIN_MAX => {}
                done => return done,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Compares the stream, as it is read by anybody, with what the writer says. The tables are not asked.
    pub(crate) async fn compare(&self) -> Result<Written> {
        let written = self.wrote(|written| written.clone());
        let payloads = self
            .patiently(async || patient::read_all(&self.stream, false, payload).await)
            .await?;
        Written::compare(&written, &payloads)
    }

    /// Messages that are committed for certain and not on the stream. At least this many: without as many messages on the stream, it is not read.
    pub(crate) async fn missing(&self) -> Result<u64> {
        let certain = self.wrote(|written| written.iter().filter(|wrote| wrote.is_certain).count());
        let messages = async || Ok(self.stream.get_info().await?.state.messages);
        match (certain as u64).checked_sub(self.patiently(messages).await?) {
            None | Some(0) => Ok(self.compare().await?.missing),
            Some(missing) => Ok(missing),
        }
    }

    /// Messages that are not settled as published.
    pub(crate) async fn unsettled(&self) -> Result<u64> {
        let table = self.names.messages(self.db.get_database_backend());
        let sql = format!("SELECT count(*) AS n FROM {table} WHERE status <> 1");
        let count = async || Ok(self.db.query_one_raw(self.statement(sql.clone())).await?);
        let row = self.patiently(count).await?;
        let n: i64 = row.ok_or("a count returned no row")?.try_get("", "n")?;
        Ok(u64::try_from(n)?)
    }

    fn statement(&self, sql: String) -> Statement {
        Statement::from_string(self.db.get_database_backend(), sql)
    }

    /// Balances the committed messages against the stream.
    pub(crate) async fn balance(&self) -> Result<Books> {
        let table = self.names.messages(self.db.get_database_backend());
        let sql = format!("SELECT id, aggregate_id, sequence, status FROM {table}");
        let mut committed = Vec::new();
        for row in self.db.query_all_raw(self.statement(sql)).await? {
            let aggregate = match row.try_get::<String>("", "aggregate_id") {
                Ok(text) => text,
                // MariaDB returns bytes.
                Err(_) => String::from_utf8(row.try_get("", "aggregate_id")?)?,
            };
            committed.push(Committed {
                id: row.try_get::<Uuid>("", "id")?,
                aggregate,
                sequence: u64::try_from(row.try_get::<i64>("", "sequence")?)?,
                settled: row.try_get::<i16>("", "status")? == 1,
            });
        }
        let log = self
            .patiently(async || patient::read_all(&self.stream, true, id).await)
            .await?;
        Ok(Books::balance(&committed, &log))
    }

    /// Removes tables and stream.
    pub(crate) async fn remove(self) -> Result<()> {
        self.context.delete_stream(&self.name).await?;
        let manager = SchemaManager::new(&self.db);
        for migration in outbox_sea_orm::migration::migrations(&self.names).iter().rev() {
            migration.down(&manager).await?;
        }
        let applied = format!("DROP TABLE {}_outbox_migrations", self.name);
        self.db.execute_unprepared(&applied).await?;
        if self.way == Way::Log {
            let log = self.names.table(self.db.get_database_backend(), "outbox_log");
            self.db.execute_unprepared(&format!("DROP TABLE {log}")).await?;
        }
        Ok(())
    }
}

/// The id of a message on the stream.
fn id(message: &jetstream::Message) -> Result<Uuid> {
    let headers = message.headers.as_ref().ok_or("a message has no headers")?;
    let id = headers.get("ce-id").ok_or("a message has no id")?;
    Ok(id.as_str().parse()?)
}

fn payload(message: &jetstream::Message) -> Result<Vec<u8>> {
    Ok(message.payload.to_vec())
}

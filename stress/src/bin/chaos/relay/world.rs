//! The database and the stream of a run.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream;
use outbox_core::DomainEvent;
use outbox_nats::EventStream;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, TableNames};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};
use sea_orm_migration::SchemaManager;
use uuid::Uuid;

use super::Options;
use super::books::{Books, Committed};
use super::written::{Written, payloads};
use crate::Result;
use crate::servers::{connect, names, new_name};

/// Messages per transaction.
const TOGETHER: u32 = 20;

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
    /// What was committed, in the order of the commits; the writer's own account of it.
    written: Arc<Mutex<Vec<Credited>>>,
}

impl World {
    /// Makes empty tables and an empty stream.
    pub(crate) async fn make(options: &Options) -> Result<Self> {
        let name = new_name();
        let db = connect(&options.database_url, 8).await?;
        let names = names(&name)?;
        outbox_sea_orm::migration::migrate_with(&db, &names).await?;
        let client = async_nats::connect(&options.nats_url).await?;
        let stream = EventStream::new(&name).with_prefix(&name)?;
        stream.provision(&client).await?;
        let context = jetstream::new(client);
        Ok(Self {
            stream: Arc::new(context.get_stream(&name).await?),
            context,
            name,
            db,
            names,
            aggregates: options.aggregates,
            written: Arc::default(),
        })
    }

    /// Records messages with these numbers, [`TOGETHER`] per transaction, going through the aggregates in turns. It takes at least `time`.
    pub(crate) async fn record(&self, numbers: Range<u32>, time: Duration) -> Result<()> {
        let config = OutboxConfig::default().with_names(self.names.clone());
        let outbox = OutboxConnection::new(self.db.clone(), config);
        let numbers: Vec<u32> = numbers.collect();
        let chunks = numbers.chunks(TOGETHER as usize);
        let pause = time / u32::try_from(chunks.len().max(1))?;
        for chunk in chunks {
            let tx = outbox.begin().await?;
            let events = chunk.iter().map(|number| Credited {
                account: number % self.aggregates,
                number: *number,
            });
            let events: Vec<_> = events.collect();
            outbox_sea_orm::record(&tx, events.clone()).await?;
            tx.commit().await?;
            self.written
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(events);
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Compares the stream, as it is read by anybody, with what the writer says. The tables are not asked.
    pub(crate) async fn compare(&self) -> Result<Written> {
        let written = self
            .written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Written::compare(&written, &payloads(&self.stream).await?)
    }

    /// Messages that are not settled as published.
    pub(crate) async fn unsettled(&self) -> Result<u64> {
        let table = self.names.messages(self.db.get_database_backend());
        let sql = format!("SELECT count(*) AS n FROM {table} WHERE status <> 1");
        let row = self.db.query_one_raw(self.statement(sql)).await?;
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
        let log = log(&self.stream).await?;
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
        Ok(())
    }
}

/// Ids of the messages on the stream, in order.
async fn log(stream: &jetstream::stream::Stream) -> Result<Vec<Uuid>> {
    use futures_util::StreamExt as _;
    use jetstream::consumer::{AckPolicy, pull};

    let consumer = stream
        .create_consumer(pull::Config {
            ack_policy: AckPolicy::None,
            headers_only: true,
            ..pull::Config::default()
        })
        .await?;
    let expected = consumer.cached_info().num_pending;
    let mut messages = consumer.stream().max_messages_per_batch(5000).messages().await?;
    let mut ids = Vec::new();
    while (ids.len() as u64) < expected {
        let message = messages.next().await.ok_or("the stream ended early")??;
        let headers = message.headers.as_ref().ok_or("a message has no headers")?;
        let id = headers.get("ce-id").ok_or("a message has no id")?;
        ids.push(id.as_str().parse()?);
    }
    Ok(ids)
}

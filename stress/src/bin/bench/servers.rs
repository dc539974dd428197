//! The database and the streams of a run.
//!
//! Invariant: a run has its own database, each outbox its own schema, and each measurement its own
//! stream.

use std::sync::atomic::{AtomicU32, Ordering};

use async_nats::jetstream;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use futures_util::TryStreamExt as _;
use outbox_nats::{EventStream, JetStreamPublisher, JetStreamSubscriber};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement};
use url::Url;
use uuid::Uuid;

use crate::figure::Figure;
use crate::{Result, check};

static NEXT: AtomicU32 = AtomicU32::new(1);

#[derive(Debug)]
pub(crate) struct Servers {
    /// A connection to another database, so that the transaction counts of the run's database
    /// exclude it.
    admin: DatabaseConnection,
    database: String,
    url: String,
    nats_url: String,
    client: async_nats::Client,
}

impl Servers {
    pub(crate) async fn with(
        postgres_url: &str,
        nats_url: &str,
        measure: impl AsyncFnOnce(&Self) -> Result<Vec<Figure>>,
    ) -> Result<Vec<Figure>> {
        let servers = Self::connect(postgres_url, nats_url).await?;
        let figures = measure(&servers).await;
        servers.remove().await?;
        figures
    }

    async fn connect(postgres_url: &str, nats_url: &str) -> Result<Self> {
        let admin = pool(postgres_url, None, 1).await?;
        let client = async_nats::connect(nats_url).await?;
        let id = Uuid::now_v7().simple().to_string();
        let database = format!("bench_{}", &id[24..]);
        admin
            .execute_unprepared(&format!("CREATE DATABASE {database}"))
            .await?;
        let mut url = Url::parse(postgres_url)?;
        url.set_path(&database);
        Ok(Self {
            admin,
            url: url.into(),
            database,
            nats_url: nats_url.to_owned(),
            client,
        })
    }

    async fn remove(self) -> Result<()> {
        let context = jetstream::new(self.client.clone());
        let names: Vec<String> = context.stream_names().try_collect().await?;
        for name in names.iter().filter(|name| name.starts_with(&self.database)) {
            context.delete_stream(name).await?;
        }
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        self.admin.execute_unprepared(&drop).await?;
        Ok(())
    }

    pub(crate) async fn schema(&self) -> Result<Schema> {
        let name = format!("run_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let db = pool(&self.url, Some(&name), 20).await?;
        db.execute_unprepared(&format!("CREATE SCHEMA {name}")).await?;
        Ok(Schema {
            name,
            url: self.url.clone(),
            db,
        })
    }

    pub(crate) async fn outbox(&self) -> Result<Schema> {
        let schema = self.schema().await?;
        outbox_sea_orm::migrate(&schema.db).await?;
        Ok(schema)
    }

    /// Number of transactions in the run's database. Backends report it every second, and 10 s
    /// after their last transaction.
    pub(crate) async fn transactions(&self) -> Result<u64> {
        let sql = format!(
            "SELECT xact_commit + xact_rollback AS n FROM pg_stat_database WHERE datname = '{}'",
            self.database
        );
        count(&self.admin, &sql).await
    }

    pub(crate) async fn stream(&self) -> Result<Stream> {
        let name = format!("{}_{}", self.database, NEXT.fetch_add(1, Ordering::Relaxed));
        let stream = EventStream::new(&name).with_prefix(&name)?;
        stream.provision(&self.client).await?;
        Ok(Stream {
            name,
            context: jetstream::new(self.client.clone()),
            nats_url: self.nats_url.clone(),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) db: DatabaseConnection,
}

impl Schema {
    pub(crate) async fn pool(&self, connections: u32) -> Result<DatabaseConnection> {
        pool(&self.url, Some(&self.name), connections).await
    }

    pub(crate) async fn messages(&self) -> Result<u64> {
        count(&self.db, "SELECT count(*) AS n FROM outbox_messages").await
    }

    pub(crate) async fn unsettled(&self) -> Result<u64> {
        count(
            &self.db,
            "SELECT count(*) AS n FROM outbox_messages WHERE published_at IS NULL",
        )
        .await
    }

    pub(crate) async fn remove(self) -> Result<()> {
        self.db
            .execute_unprepared(&format!("DROP SCHEMA {} CASCADE", self.name))
            .await?;
        self.db.close().await?;
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) name: String,
    context: jetstream::Context,
    pub(crate) nats_url: String,
}

impl Stream {
    pub(crate) fn prefix(&self) -> &str {
        &self.name
    }

    pub(crate) async fn messages(&self) -> Result<u64> {
        Ok(self
            .context
            .get_stream(&self.name)
            .await?
            .cached_info()
            .state
            .messages)
    }

    pub(crate) async fn publisher(&self) -> Result<JetStreamPublisher> {
        let (events, client) = self.client().await?;
        Ok(events.publisher(client))
    }

    pub(crate) async fn subscriber(&self) -> Result<JetStreamSubscriber> {
        let (events, client) = self.client().await?;
        Ok(events.subscriber(client))
    }

    async fn client(&self) -> Result<(EventStream, async_nats::Client)> {
        let client = outbox_nats::connect(&self.nats_url, outbox_nats::connect_options()).await?;
        Ok((EventStream::new(&self.name).with_prefix(self.prefix())?, client))
    }

    pub(crate) async fn left(&self, consumer: &str) -> Result<Option<u64>> {
        let stream = self.context.get_stream_no_info(&self.name).await?;
        match stream.consumer_info(consumer).await {
            Ok(info) => Ok(Some(info.num_pending + info.num_ack_pending as u64)),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn forget(&self, consumer: &str) -> Result<()> {
        let stream = self.context.get_stream_no_info(&self.name).await?;
        stream.delete_consumer(consumer).await?;
        Ok(())
    }

    pub(crate) async fn remove(self, expected: u64) -> Result<()> {
        let found = self.messages().await?;
        self.context.delete_stream(&self.name).await?;
        check("messages on the stream", found, expected)
    }
}

async fn pool(url: &str, schema: Option<&str>, connections: u32) -> Result<DatabaseConnection> {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(connections)
        .min_connections(connections)
        .sqlx_logging(false);
    if let Some(schema) = schema {
        options.set_schema_search_path(schema);
    }
    Ok(Database::connect(options).await?)
}

pub(crate) async fn count(db: &DatabaseConnection, sql: &str) -> Result<u64> {
    let row = db
        .query_one_raw(Statement::from_string(DbBackend::Postgres, sql))
        .await?
        .ok_or("a count returned no row")?;
    let n: i64 = row.try_get("", "n")?;
    Ok(u64::try_from(n)?)
}

//! The database and the stream of a plan.
//!
//! The driver publishes the messages, encoded as our publisher encodes them, because recording a million of them in an
//! outbox would take longer than the plan itself. They carry no message id for the broker, so it keeps every copy.

use std::collections::VecDeque;
use std::future::IntoFuture as _;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::context::{ConsumerInfoErrorKind, Context, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Stream;
use outbox_core::{EventId, NewMessage, codec};
use outbox_nats::EventStream;
use outbox_sea_orm::TableNames;
use outbox_stress::patient;
use outbox_test_servers::SOON;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};
use sea_orm_migration::SchemaManager;
use tempfile::TempDir;
use time::OffsetDateTime;
use uuid::Uuid;

use super::books::{Books, Found};
use super::consumer::{CONSUMER, Deposited};
use crate::Result;
use crate::servers::{connect, names, new_name};

/// Aggregates that the events belong to.
const AGGREGATES: u32 = 500;
/// The largest number of unacknowledged messages while publishing.
const WINDOW: usize = 1024;
/// The id of event 0; the ids of the other events follow.
const FIRST_ID: u128 = 0x0199_0000_0000_7000_8000_0000_0000_0000;

/// The table of effects of a run.
pub(super) fn effects(name: &str) -> String {
    format!("{name}_effects")
}

/// The database and the stream of a plan.
#[derive(Debug)]
pub(super) struct World {
    pub(super) name: String,
    /// The URL of the database, for consumers.
    pub(super) url: String,
    db: DatabaseConnection,
    names: TableNames,
    context: Context,
    stream: Stream,
    /// The folder of SQLite's file.
    _folder: Option<TempDir>,
}

impl World {
    /// Makes empty tables and an empty stream. For the URL `sqlite` it also makes a file.
    pub(super) async fn make(database_url: &str, nats_url: &str) -> Result<Self> {
        let name = new_name();
        let (url, folder) = if database_url == "sqlite" {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("chaos.db");
            (format!("sqlite://{}?mode=rwc", file.display()), Some(folder))
        } else {
            (database_url.to_owned(), None)
        };
        let db = connect(&url, 2).await?;
        if folder.is_some() {
            // SQLite stores this setting in the file.
            db.execute_unprepared("PRAGMA journal_mode = WAL").await?;
        }
        let names = names(&name)?;
        outbox_inbox::migration::migrate_with(&db, &names).await?;
        // No unique key: a second effect must be counted, not refused.
        db.execute_unprepared(&format!(
            "CREATE TABLE {} (number BIGINT NOT NULL)",
            effects(&name)
        ))
        .await?;
        let stream = EventStream::new(&name).with_prefix(&name)?;
        let client = patient::provision(&stream, nats_url).await?;
        let context = async_nats::jetstream::context::ContextBuilder::new()
            .timeout(SOON)
            .max_ack_inflight(2 * WINDOW)
            .build(client);
        Ok(Self {
            stream: context.get_stream(&name).await?,
            context,
            name,
            url,
            db,
            names,
            _folder: folder,
        })
    }

    /// Publishes each event this many times. Copies are spread among the other messages; the seed determines their
    /// order.
    pub(super) async fn publish(&self, events: u32, copies: u32, seed: u64) -> Result<()> {
        let mut numbers: Vec<u32> = (0..copies).flat_map(|_| 0..events).collect();
        if copies > 1 {
            fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
        }
        let mut acks: VecDeque<PublishAckFuture> = VecDeque::with_capacity(WINDOW);
        for number in numbers {
            if acks.len() == WINDOW
                && let Some(ack) = acks.pop_front()
            {
                ack.into_future().await?;
            }
            acks.push_back(self.send(number).await?);
        }
        for ack in acks {
            ack.into_future().await?;
        }
        Ok(())
    }

    async fn send(&self, number: u32) -> Result<PublishAckFuture> {
        let account = number % AGGREGATES;
        let sequence = u64::from(number / AGGREGATES) + 1;
        let mut message = NewMessage::from_event(&Deposited { account, number })?
            .into_message(Some(sequence), OffsetDateTime::now_utc());
        message.event_id = EventId::from(Uuid::from_u128(FIRST_ID + u128::from(number)));
        let encoded = codec::encode(&message, "chaos");
        let mut headers = HeaderMap::new();
        for (name, value) in &encoded.headers {
            headers.append(name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?);
        }
        let publish = PublishMessage::build().payload(encoded.payload).headers(headers);
        let subject = format!("{}.account.{account}.deposited", self.name);
        Ok(self.context.send_publish(subject, publish).await?)
    }

    /// Messages that the consumer has not acknowledged; `None` if there is no consumer yet.
    pub(super) async fn left(&self) -> Result<Option<u64>> {
        let info = self.consumer().await?;
        Ok(info.map(|info| info.num_pending + info.num_ack_pending as u64))
    }

    /// Deliveries to the consumer so far.
    pub(super) async fn deliveries(&self) -> Result<u64> {
        let info = self.consumer().await?;
        Ok(info.map_or(0, |info| info.delivered.consumer_sequence))
    }

    async fn consumer(&self) -> Result<Option<Info>> {
        match self.stream.consumer_info(CONSUMER).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Balances the published events against effects, inbox rows and dead letters.
    pub(super) async fn balance(&self, events: u32, misbehaved: bool) -> Result<Books> {
        let backend = self.db.get_database_backend();
        let table = |name| self.names.table(backend, name);
        let mut found = Found::new(events, misbehaved);
        let effects = effects(&self.name);
        for row in self.query(format!("SELECT number FROM {effects}")).await? {
            found.effect(u128::try_from(row.try_get::<i64>("", "number")?)?);
        }
        for row in self
            .query(format!("SELECT id, status FROM {}", table("inbox_messages")))
            .await?
        {
            found.row(number(row.try_get("", "id")?), row.try_get("", "status")?);
        }
        for row in self
            .query(format!("SELECT event_id FROM {}", table("inbox_dead_letters")))
            .await?
        {
            found.dead_letter(row.try_get::<Option<Uuid>>("", "event_id")?.map(number));
        }
        Ok(found.balance())
    }

    async fn query(&self, sql: String) -> Result<Vec<sea_orm::QueryResult>> {
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        Ok(self.db.query_all_raw(statement).await?)
    }

    /// Removes tables and stream.
    pub(super) async fn remove(self) -> Result<()> {
        self.context.delete_stream(&self.name).await?;
        let manager = SchemaManager::new(&self.db);
        for migration in outbox_inbox::migration::migrations(&self.names).iter().rev() {
            migration.down(&manager).await?;
        }
        for table in [format!("{}_inbox_migrations", self.name), effects(&self.name)] {
            self.db.execute_unprepared(&format!("DROP TABLE {table}")).await?;
        }
        self.db.close().await?;
        Ok(())
    }
}

/// The number of an event. Ids that were never published give a number that no event has.
fn number(id: Uuid) -> u128 {
    id.as_u128().wrapping_sub(FIRST_ID)
}

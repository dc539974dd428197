//! The database and the stream of a plan. Messages are published without ids, so that the broker
//! keeps every copy.

use std::future::IntoFuture as _;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::context::{ConsumerInfoErrorKind, Context, ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use outbox_core::{EventId, NewMessage, codec};
use outbox_test_servers::SOON;
use sea_orm::ConnectionTrait as _;
use tempfile::TempDir;
use time::OffsetDateTime;
use uuid::Uuid;

use super::books::{Books, Found};
use super::consumer::{CONSUMER, Deposited};
use crate::Result;
use crate::servers::Ground;

const AGGREGATES: u32 = 500;
const WINDOW: usize = 1024;
const FIRST_ID: u128 = 0x0199_0000_0000_7000_8000_0000_0000_0000;

pub(super) fn effects(name: &str) -> String {
    format!("{name}_effects")
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) ground: Ground,
    publisher: Context,
    _folder: Option<TempDir>,
}

impl World {
    pub(super) async fn make(database_url: &str, nats_url: &str) -> Result<Self> {
        let folder = (database_url == "sqlite").then(tempfile::tempdir).transpose()?;
        let url = folder.as_ref().map_or_else(
            || database_url.to_owned(),
            |folder| format!("sqlite://{}?mode=rwc", folder.path().join("chaos.db").display()),
        );
        let ground = Ground::make(&url, nats_url, 2).await?;
        if folder.is_some() {
            ground.db.execute_unprepared("PRAGMA journal_mode = WAL").await?;
        }
        outbox_inbox::migration::migrate_with(&ground.db, &ground.names).await?;
        // The table has no unique key: a second effect must be counted, not rejected.
        let table = format!(
            "CREATE TABLE {} (number BIGINT NOT NULL)",
            effects(&ground.place.name)
        );
        ground.db.execute_unprepared(&table).await?;
        let publisher = ContextBuilder::new().timeout(SOON).max_ack_inflight(2 * WINDOW);
        Ok(Self {
            publisher: publisher.build(ground.client.clone()),
            ground,
            _folder: folder,
        })
    }

    pub(super) async fn publish(&self, events: u32, copies: u32, seed: u64) -> Result<()> {
        let mut numbers: Vec<u32> = (0..copies).flat_map(|_| 0..events).collect();
        if copies > 1 {
            fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
        }
        let publishes = stream::iter(numbers).then(|number| self.send(number));
        let acks = publishes.map_ok(|ack| async { Ok(ack.into_future().await?) });
        acks.try_buffered(WINDOW).try_for_each(|_| async { Ok(()) }).await
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
        let subject = format!("{}.account.{account}.deposited", self.ground.place.name);
        Ok(self.publisher.send_publish(subject, publish).await?)
    }

    pub(super) async fn left(&self) -> Result<Option<u64>> {
        let info = self.consumer().await?;
        Ok(info.map(|info| info.num_pending + info.num_ack_pending as u64))
    }

    pub(super) async fn deliveries(&self) -> Result<u64> {
        let info = self.consumer().await?;
        Ok(info.map_or(0, |info| info.delivered.consumer_sequence))
    }

    async fn consumer(&self) -> Result<Option<Info>> {
        match self.ground.stream.consumer_info(CONSUMER).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn balance(&self, events: u32, misbehaved: bool) -> Result<Books> {
        let mut found = Found::new(events, misbehaved);
        let ground = &self.ground;
        let effects = format!("SELECT number FROM {}", effects(&ground.place.name));
        for row in ground.query(&effects).await? {
            found.effect(u128::try_from(row.try_get::<i64>("", "number")?)?);
        }
        let rows = format!("SELECT id, status FROM {}", ground.table("inbox_messages"));
        for row in ground.query(&rows).await? {
            found.row(number(row.try_get("", "id")?), row.try_get("", "status")?);
        }
        let letters = format!("SELECT event_id FROM {}", ground.table("inbox_dead_letters"));
        for row in ground.query(&letters).await? {
            found.dead_letter(row.try_get::<Option<Uuid>>("", "event_id")?.map(number));
        }
        Ok(found.balance())
    }
}

fn number(id: Uuid) -> u128 {
    id.as_u128().wrapping_sub(FIRST_ID)
}

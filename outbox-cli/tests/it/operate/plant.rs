//! Brings an outbox into a state that services and relays would cause.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::{
    Events, FetchRequest, FetchedRow, IntoEvents, Lease, MessageId, NewMessage, OutboxStore as _, OwnerId,
    Relay, RelayHealth, Verdict, WaitingRequest,
};
use outbox::prelude::*;
use outbox::sea_orm::{OutboxConfig, OutboxConnection, SqlStore, TableNames, migration};
use sea_orm::{ConnectionTrait as _, DatabaseConnection};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::place::{Kind, Place};

pub(crate) const LONG: Duration = Duration::from_secs(600);

const ALL: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
pub(crate) struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: String,
    pub(crate) email: String,
}

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "viewed", unsequenced)]
struct OrderViewed {
    #[domain_event(aggregate_id)]
    order_id: String,
}

pub(crate) struct Planted {
    pub(crate) place: Place,
    pub(crate) store: SqlStore,
    pub(crate) names: TableNames,
    connection: OutboxConnection,
}

impl Planted {
    pub(crate) async fn open(kind: Kind) -> Option<Self> {
        let place = Place::open(kind).await?;
        let mut names = TableNames::new();
        if let Some(schema) = &place.schema {
            names = names.with_schema(schema).unwrap();
        }
        migration::migrate_with(&place.db, &names).await.unwrap();
        let config = OutboxConfig::default().with_names(names.clone());
        Some(Self {
            store: SqlStore::new(place.db.clone()).with_names(&names).unwrap(),
            connection: OutboxConnection::new(place.db.clone(), config),
            names,
            place,
        })
    }

    pub(crate) async fn record(&self, events: impl IntoEvents) -> MessageId {
        let tx = self.connection.begin().await.unwrap();
        let ids = outbox::sea_orm::record(&tx, events).await.unwrap();
        tx.commit().await.unwrap();
        ids[0]
    }

    pub(crate) async fn placed(&self, order_id: &str) -> MessageId {
        let (order_id, email) = (order_id.to_owned(), "ada@example.org".to_owned());
        self.record([OrderPlaced { order_id, email }]).await
    }

    pub(crate) async fn viewed(&self, order_id: &str) -> MessageId {
        let order_id = order_id.to_owned();
        self.record([OrderViewed { order_id }]).await
    }

    pub(crate) async fn delayed(&self, order_id: &str) -> MessageId {
        let (order_id, email) = (order_id.to_owned(), String::new());
        let message = NewMessage::from_event(&OrderPlaced { order_id, email }).unwrap();
        let message = message.available_at(OffsetDateTime::now_utc() + LONG);
        self.record(Events::new().with(message)).await
    }

    pub(crate) async fn announce(&self, health: RelayHealth) -> OwnerId {
        let owner = OwnerId::fresh();
        self.store.announce(owner, LONG, &health.into()).await.unwrap();
        owner
    }

    pub(crate) async fn relay(&self, health: RelayHealth) -> (OwnerId, Vec<Lease>) {
        let owner = self.announce(health).await;
        let leases = self.store.acquire(owner, LONG, 64).await.unwrap();
        assert_eq!(leases.len(), 64);
        (owner, leases)
    }

    async fn fetch(&self, leases: &[Lease]) -> Vec<FetchedRow> {
        let request = FetchRequest {
            leases,
            limit: ALL,
            bytes: usize::MAX,
            in_flight: &[],
        };
        let mut fetched = self.store.fetch(request).await.unwrap();
        self.store.settle(leases, &fetched.waits).await.unwrap();
        let waiting = WaitingRequest {
            leases,
            limit: ALL,
            per_aggregate: ALL,
            bytes: usize::MAX,
            in_flight: &[],
            excluding: &[],
        };
        fetched
            .due
            .extend(self.store.fetch_waiting(waiting).await.unwrap().due);
        fetched.due
    }

    pub(crate) async fn settle(&self, leases: &[Lease], id: MessageId, verdict: Verdict) {
        let rows = self.fetch(leases).await;
        let is_it = |row: &&FetchedRow| row.message.as_ref().is_ok_and(|message| message.id == id);
        let row = rows.iter().find(is_it).unwrap();
        let settlement = row.with_verdict(verdict);
        assert_eq!(self.store.settle(leases, &[settlement]).await.unwrap(), 1);
        self.fetch(leases).await;
    }

    pub(crate) async fn provision(&self) {
        let stream = EventStream::new(&self.place.name)
            .with_prefix(&self.place.name)
            .unwrap();
        let client = stream.connect(&self.place.nats).await.unwrap();
        stream.provision(&client).await.unwrap();
    }

    pub(crate) async fn publish(&self) {
        self.provision().await;
        self.publish_as_it_is().await;
    }

    pub(crate) async fn publish_as_it_is(&self) {
        let stream = EventStream::new(&self.place.name)
            .with_prefix(&self.place.name)
            .unwrap();
        let client = stream.connect(&self.place.nats).await.unwrap();
        Relay::new(self.store.clone(), stream.publisher(client))
            .drain()
            .await
            .unwrap();
    }

    pub(crate) async fn make_inbox(&self) {
        outbox::inbox::migration::migrate_with(&self.place.db, &self.names)
            .await
            .unwrap();
    }

    pub(crate) async fn handle(&self) {
        self.make_inbox().await;
        self.handle_as(self.place.db.clone()).await;
    }

    pub(crate) async fn handle_as(&self, db: DatabaseConnection) {
        self.handle_by("billing", db).await;
    }

    pub(crate) async fn handle_by(&self, consumer: &str, db: DatabaseConnection) {
        let stream = EventStream::new(&self.place.name)
            .with_prefix(&self.place.name)
            .unwrap();
        let client = stream.connect(&self.place.nats).await.unwrap();
        let inbox = Inbox::new(db, stream.subscriber(client))
            .with_names(self.names.clone())
            .with_outbox(OutboxConfig::default().with_names(self.names.clone()))
            .with_consumers([consumer]);
        inbox.drain().await.unwrap();
    }

    pub(crate) async fn publish_after(&self, (owner, _): &(OwnerId, Vec<Lease>)) {
        self.store.leave(*owner).await.unwrap();
        self.publish().await;
    }

    pub(crate) async fn corrupt(&self, order_id: &str) {
        self.set("headers = '[1]'", order_id).await;
    }

    pub(crate) async fn set_subject(&self, order_id: &str, subject: &str) {
        self.set(&format!("subject = '{subject}'"), order_id).await;
    }

    async fn set(&self, what: &str, order_id: &str) {
        let schema = self.place.schema.as_ref().map(|schema| format!("{schema}."));
        let sql = format!(
            "UPDATE {}outbox_messages SET {what} WHERE aggregate_id = '{order_id}'",
            schema.unwrap_or_default()
        );
        self.place.db.execute_unprepared(&sql).await.unwrap();
    }

    pub(crate) async fn close(self) {
        self.place.close().await;
    }
}

pub(crate) fn dead(halt: bool) -> Verdict {
    Verdict::Dead {
        error: "maximum payload exceeded".to_owned(),
        halt,
    }
}

pub(crate) fn failed() -> Verdict {
    Verdict::Blocked {
        delay: LONG,
        error: Some("no answer".to_owned()),
        attempt: true,
    }
}

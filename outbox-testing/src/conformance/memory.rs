//! Fixtures of the in-memory implementations, and the shortest examples of writing a fixture.
//!
//! They are generic over the implementation, so that the planted mistakes of [`crate::wrong`], which wrap the
//! in-memory implementations, run the same suites.

use std::time::Duration;

use outbox_core::dedup::DedupStore;
use outbox_core::message::{Events, Message, MessageId};
use outbox_core::publisher::{Publisher, StreamReader};
use outbox_core::store::OutboxAudit;
use outbox_core::subscriber::Subscriber;
use time::OffsetDateTime;

use super::dedup_store::DedupStoreFixture;
use super::publisher::{PublisherCapabilities, PublisherFixture};
use super::store::{OpenTransaction, Refused, RowState, StoreCapabilities, StoreFixture};
use super::stream_log::StreamLogFixture;
use super::subscriber::SubscriberFixture;
use crate::{
    LogEntry, MemoryBroker, MemoryDedupStore, MemoryPublisher, MemoryStore, MemorySubscriber,
    MemoryTransaction,
};

/// Runs the suite of stores over [`MemoryStore`], or over a wrapper of it.
#[derive(Debug)]
pub struct MemoryStoreFixture<S = MemoryStore> {
    memory: MemoryStore,
    store: S,
}

impl MemoryStoreFixture {
    /// A fresh store.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|memory| memory)
    }
}

impl Default for MemoryStoreFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> MemoryStoreFixture<S> {
    /// A wrapper around a fresh store.
    pub fn wrapping(wrap: impl FnOnce(MemoryStore) -> S) -> Self {
        let memory = MemoryStore::new();
        Self {
            store: wrap(memory.clone()),
            memory,
        }
    }
}

impl<S: OutboxAudit> StoreFixture for MemoryStoreFixture<S> {
    type Store = S;
    type Open = MemoryTransaction;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            overlapping_transactions: true,
        }
    }

    fn store(&self) -> &S {
        &self.store
    }

    async fn now(&self) -> OffsetDateTime {
        self.memory.now()
    }

    async fn commit(&self, events: Events) -> Result<(), Refused> {
        Ok(self.memory.record(events)?)
    }

    async fn roll_back(&self, events: Events) -> Result<(), Refused> {
        self.memory.begin().record(events)?;
        Ok(())
    }

    async fn begin(&self, events: Events) -> Result<MemoryTransaction, Refused> {
        let mut transaction = self.memory.begin();
        transaction.record(events)?;
        Ok(transaction)
    }

    async fn expire_leases(&self) {
        self.memory.expire_leases();
    }

    async fn set_back_row_ids(&self) {
        self.memory.set_back_row_ids();
    }

    async fn set_clock_back(&self, by: Duration) {
        self.memory.set_clock_back(by);
    }

    async fn corrupt(&self, id: MessageId) {
        assert!(self.memory.corrupt(id), "message {id} is in the outbox");
    }

    async fn rows(&self) -> Vec<RowState> {
        let state = |row: crate::StoredRow| RowState {
            id: row.message.id,
            aggregate: row.message.aggregate,
            sequence: row.message.sequence,
            status: row.status,
            attempts: row.attempts,
        };
        self.memory.rows().into_iter().map(state).collect()
    }
}

impl OpenTransaction for MemoryTransaction {
    async fn commit(self) {
        MemoryTransaction::commit(self).expect("the suite holds no deduplication keys");
    }

    async fn roll_back(self) {
        MemoryTransaction::roll_back(self);
    }
}

/// Runs the suite of publishers over [`MemoryPublisher`], or over a wrapper of it.
#[derive(Debug)]
pub struct MemoryPublisherFixture<P = MemoryPublisher> {
    broker: MemoryBroker,
    publisher: P,
}

impl MemoryPublisherFixture {
    /// A fresh broker.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|publisher| publisher)
    }
}

impl Default for MemoryPublisherFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> MemoryPublisherFixture<P> {
    /// A wrapper around a publisher to a fresh broker.
    pub fn wrapping(wrap: impl FnOnce(MemoryPublisher) -> P) -> Self {
        let broker = MemoryBroker::new();
        Self {
            publisher: wrap(broker.publisher()),
            broker,
        }
    }
}

impl<P: Publisher> PublisherFixture for MemoryPublisherFixture<P> {
    type Publisher = P;

    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities { outage: true }
    }

    fn publisher(&self) -> &P {
        &self.publisher
    }

    async fn stored(&self) -> Vec<LogEntry> {
        self.broker.log()
    }

    fn fixed_subject(&self) -> String {
        "fixed.subject".to_owned()
    }

    fn payload_bytes_too_many(&self) -> usize {
        1024 * 1024 + 1
    }

    async fn set_available(&self, available: bool) {
        self.broker.set_down(!available);
    }
}

/// Runs the suite of stream logs over [`MemoryBroker`], or over a wrapper of it.
#[derive(Debug)]
pub struct MemoryLogFixture<L = MemoryBroker> {
    broker: MemoryBroker,
    log: L,
}

impl MemoryLogFixture {
    /// A fresh broker.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|broker| broker)
    }
}

impl Default for MemoryLogFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> MemoryLogFixture<L> {
    /// A wrapper around the log of a fresh broker.
    pub fn wrapping(wrap: impl FnOnce(MemoryBroker) -> L) -> Self {
        let broker = MemoryBroker::new();
        Self {
            log: wrap(broker.clone()),
            broker,
        }
    }
}

impl<L: StreamReader> StreamLogFixture for MemoryLogFixture<L> {
    type Log = L;

    fn log(&self) -> &L {
        &self.log
    }

    async fn now(&self) -> OffsetDateTime {
        self.broker.now()
    }

    async fn publish(&self, message: Message) {
        let publisher = self.broker.publisher();
        publisher.publish(&message).await.expect("the broker is up");
    }

    async fn publish_foreign(&self) {
        self.broker.inject("events.foreign", Vec::new(), "not ours");
    }
}

/// Runs the suite of subscribers over [`MemorySubscriber`], or over a wrapper of it.
#[derive(Debug)]
pub struct MemorySubscriberFixture<S = MemorySubscriber> {
    broker: MemoryBroker,
    subscriber: S,
}

impl MemorySubscriberFixture {
    /// A fresh broker.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|subscriber| subscriber)
    }
}

impl Default for MemorySubscriberFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> MemorySubscriberFixture<S> {
    /// A wrapper around a subscriber of a fresh broker, whose subscriptions fetch ahead.
    pub fn wrapping(wrap: impl FnOnce(MemorySubscriber) -> S) -> Self {
        let broker = MemoryBroker::new().with_prefetch();
        Self {
            subscriber: wrap(broker.subscriber()),
            broker,
        }
    }
}

impl<S: Subscriber> SubscriberFixture for MemorySubscriberFixture<S> {
    type Subscriber = S;

    fn subscriber(&self) -> &S {
        &self.subscriber
    }

    async fn publish(&self, message: Message) {
        self.broker
            .publisher()
            .publish(&message)
            .await
            .expect("the broker is up");
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> OffsetDateTime {
        self.broker.now()
    }

    fn fixed_subject(&self) -> String {
        "fixed.subject".to_owned()
    }
}

/// Runs the suite of deduplication stores over [`MemoryDedupStore`], or over another one.
#[derive(Debug)]
pub struct MemoryDedupStoreFixture<S = MemoryDedupStore> {
    store: S,
}

impl MemoryDedupStoreFixture {
    /// A fresh store.
    #[must_use]
    pub fn new() -> Self {
        Self::over(MemoryDedupStore::new())
    }
}

impl Default for MemoryDedupStoreFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> MemoryDedupStoreFixture<S> {
    /// A fixture over the given store.
    pub fn over(store: S) -> Self {
        Self { store }
    }
}

impl<S: DedupStore> DedupStoreFixture for MemoryDedupStoreFixture<S> {
    type Store = S;

    fn stores(&self) -> [&S; 2] {
        [&self.store, &self.store]
    }
}

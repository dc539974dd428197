//! Fixtures of the in-memory implementations and of the planted mistakes.

use std::time::Duration;

use outbox_core::dedup::DedupStore;
use outbox_core::log::{Logged, MessageLog, Position};
use outbox_core::message::{Events, Message, MessageId};
use outbox_core::publisher::{Publisher, StreamReader};
use outbox_core::store::OutboxAudit;
use outbox_core::subscriber::Subscriber;
use time::OffsetDateTime;

use outbox_testing::conformance::dedup_store::DedupStoreFixture;
use outbox_testing::conformance::log::LogFixture;
use outbox_testing::conformance::publisher::PublisherFixture;
use outbox_testing::conformance::store::{OpenTransaction, Refused, StoreFixture};
use outbox_testing::conformance::stream_log::StreamLogFixture;
use outbox_testing::conformance::subscriber::SubscriberFixture;
use outbox_testing::{LogEntry, MemoryBroker, MemoryLog, MemoryStore, MemoryTransaction};

use crate::wrong::WriterMistake;

#[derive(Debug)]
pub struct MemoryStoreFixture<S = MemoryStore> {
    memory: MemoryStore,
    store: S,
    mistake: Option<WriterMistake>,
}

impl MemoryStoreFixture {
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|memory| memory)
    }

    #[must_use]
    pub fn with_writer(mistake: WriterMistake) -> Self {
        Self {
            mistake: Some(mistake),
            ..Self::new()
        }
    }
}

impl Default for MemoryStoreFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> MemoryStoreFixture<S> {
    pub fn wrapping(wrap: impl FnOnce(MemoryStore) -> S) -> Self {
        let memory = MemoryStore::new();
        Self {
            store: wrap(memory.clone()),
            memory,
            mistake: None,
        }
    }
}

impl<S: OutboxAudit> StoreFixture for MemoryStoreFixture<S> {
    type Store = S;
    type Open = Open;

    fn store(&self) -> &S {
        &self.store
    }

    async fn now(&self) -> OffsetDateTime {
        self.memory.now()
    }

    async fn commit(&self, events: Events) -> Result<(), Refused> {
        match self.mistake {
            Some(mistake) => mistake.commit(&self.memory, events),
            None => Ok(self.memory.record(events)?),
        }
    }

    async fn roll_back(&self, events: Events) -> Result<(), Refused> {
        match self.mistake {
            Some(mistake) => mistake.roll_back(&self.memory, events),
            None => Ok(self.memory.begin().record(events)?),
        }
    }

    async fn begin(&self, events: Events) -> Result<Open, Refused> {
        let mut transaction = self.memory.begin();
        transaction.record(events)?;
        Ok(Open(transaction))
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
}

#[derive(Debug)]
pub struct Open(MemoryTransaction);

impl OpenTransaction for Open {
    async fn commit(self) {
        self.0.commit().expect("the suite holds no deduplication keys");
    }

    async fn roll_back(self) {
        self.0.roll_back();
    }
}

#[derive(Debug)]
pub struct MemoryBrokerFixture<T> {
    broker: MemoryBroker,
    part: T,
}

impl<T> MemoryBrokerFixture<T> {
    pub fn of(part: impl FnOnce(&MemoryBroker) -> T) -> Self {
        let broker = MemoryBroker::new().with_prefetch();
        Self {
            part: part(&broker),
            broker,
        }
    }

    async fn publish(&self, message: Message) {
        let publisher = self.broker.publisher();
        publisher.publish(&message).await.expect("the broker is up");
    }
}

const FIXED_SUBJECT: &str = "fixed.subject";

impl<P: Publisher> PublisherFixture for MemoryBrokerFixture<P> {
    type Publisher = P;

    fn publisher(&self) -> &P {
        &self.part
    }

    async fn stored(&self) -> Vec<LogEntry> {
        self.broker.log()
    }

    fn fixed_subject(&self) -> String {
        FIXED_SUBJECT.to_owned()
    }

    fn payload_bytes_too_many(&self) -> usize {
        1024 * 1024 + 1
    }

    async fn set_available(&self, available: bool) {
        self.broker.set_down(!available);
    }
}

impl<L: StreamReader> StreamLogFixture for MemoryBrokerFixture<L> {
    type Log = L;

    fn log(&self) -> &L {
        &self.part
    }

    async fn now(&self) -> OffsetDateTime {
        self.broker.now()
    }

    async fn publish(&self, message: Message) {
        self.publish(message).await;
    }

    async fn publish_foreign(&self) {
        self.broker.inject("events.foreign", Vec::new(), "not ours");
    }
}

impl<S: Subscriber> SubscriberFixture for MemoryBrokerFixture<S> {
    type Subscriber = S;

    fn subscriber(&self) -> &S {
        &self.part
    }

    async fn publish(&self, message: Message) {
        self.publish(message).await;
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> OffsetDateTime {
        self.broker.now()
    }

    fn fixed_subject(&self) -> String {
        FIXED_SUBJECT.to_owned()
    }
}

#[derive(Debug)]
pub struct MemoryDedupStoreFixture<S>(pub S);

impl<S: DedupStore> DedupStoreFixture for MemoryDedupStoreFixture<S> {
    type Store = S;

    fn stores(&self) -> [&S; 2] {
        [&self.0, &self.0]
    }
}

#[derive(Debug)]
pub struct MemoryLogFixture<L = MemoryLog> {
    outbox: MemoryStoreFixture,
    memory: MemoryLog,
    log: L,
}

impl<L> MemoryLogFixture<L> {
    pub fn of(log: impl FnOnce(&MemoryStore) -> L) -> Self {
        let outbox = MemoryStoreFixture::new();
        Self {
            memory: outbox.memory.log(),
            log: log(&outbox.memory),
            outbox,
        }
    }
}

impl<L: MessageLog> LogFixture for MemoryLogFixture<L> {
    type Log = L;
    type Outbox = MemoryStoreFixture;

    fn log(&self) -> &L {
        &self.log
    }

    fn outbox(&self) -> &MemoryStoreFixture {
        &self.outbox
    }

    async fn write_elsewhere(&self) {
        self.memory.write_elsewhere(1);
    }

    async fn interrupt(&self) {
        self.memory.interrupt();
    }

    async fn lose(&self) {
        self.memory.lose();
    }

    async fn commit_unseen(&self, events: Events) -> Vec<Logged> {
        let before = self.outbox.memory.rows().len();
        self.memory.hide_next(u32::MAX);
        self.outbox.commit(events).await.expect("events are recorded");
        let recorded = self.outbox.memory.rows().into_iter().skip(before);
        recorded
            .map(|row| Logged {
                id: row.message.id,
                transaction: 0,
                passed_from: Position(u64::MAX),
            })
            .collect()
    }

    async fn show(&self) {
        self.memory.hide_next(0);
    }
}

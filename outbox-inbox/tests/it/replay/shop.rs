//! A consumer with rows of all kinds. Everything can be published again under new ids, so that what is not remembered shows.

use outbox_core::{DomainEvent, Message, NewMessage};
use outbox_inbox::{
    Consumers, Event, HandlerError, HandlerState, InboxReport, PausedConsumers, Router, Tx,
    idempotent_handler,
};
use outbox_testing::{MemoryBroker, MemorySubscriber};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::orders::{Orders, copy, lines, numbered, prepare, put};
use crate::runtime::within;
use crate::support::{OrderPlaced, TestDb, slow};

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "parcel", name = "moved")]
pub(crate) struct ParcelMoved {
    #[domain_event(aggregate_id)]
    pub(crate) parcel_id: u64,
    pub(crate) step: u32,
}

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "invoice", name = "sent", unsequenced)]
pub(crate) struct InvoiceSent {
    #[domain_event(aggregate_id)]
    pub(crate) invoice_id: u64,
    pub(crate) number: u32,
}

/// One handler of each strategy with rows.
pub(crate) mod before {
    use super::*;

    #[idempotent_handler(consumer = "before")]
    pub(crate) async fn order(
        event: Event<OrderPlaced>,
        tx: Tx<'_>,
        orders: HandlerState<Orders>,
    ) -> Result<(), HandlerError> {
        orders.note("order", &event, &tx).await
    }

    #[idempotent_handler(consumer = "before", strategy = sequence(gap = "1h"))]
    pub(crate) async fn parcel(
        event: Event<ParcelMoved>,
        tx: Tx<'_>,
        orders: HandlerState<Orders>,
    ) -> Result<(), HandlerError> {
        let line = OrderPlaced {
            order_id: event.parcel_id,
            line: event.step,
        };
        orders.note("parcel", &line, &tx).await
    }

    #[idempotent_handler(consumer = "before", strategy = key(number))]
    pub(crate) async fn invoice(
        event: Event<InvoiceSent>,
        tx: Tx<'_>,
        orders: HandlerState<Orders>,
    ) -> Result<(), HandlerError> {
        let line = OrderPlaced {
            order_id: event.invoice_id,
            line: event.number,
        };
        orders.note("invoice", &line, &tx).await
    }

    pub(crate) fn router() -> Router {
        Router::new()
            .handler::<order>()
            .handler::<parcel>()
            .handler::<invoice>()
    }
}

pub(crate) fn step(parcel_id: u64, step: u32) -> Message {
    let moved = ParcelMoved { parcel_id, step };
    let moved = NewMessage::from_event(&moved).unwrap();
    moved.into_message(Some(u64::from(step)), OffsetDateTime::now_utc())
}

pub(crate) fn invoice(invoice_id: u64, number: u32) -> Message {
    let sent = NewMessage::from_event(&InvoiceSent { invoice_id, number }).unwrap();
    sent.into_message(None, OffsetDateTime::now_utc())
}

/// A consumer with rows of all kinds.
pub(crate) struct Shop {
    pub(crate) test: TestDb,
    pub(crate) broker: MemoryBroker,
    pub(crate) orders: Orders,
    published: Vec<Message>,
}

impl Shop {
    pub(crate) async fn new(test: TestDb) -> Self {
        prepare(&test).await;
        let mut shop = Self {
            test,
            broker: MemoryBroker::new(),
            orders: Orders::default(),
            published: Vec::new(),
        };
        let messages = [
            numbered(1, 1),
            numbered(2, 1),
            step(1, 1),
            step(1, 2),
            invoice(1, 7),
        ];
        for message in messages {
            shop.publish(message).await;
        }
        shop
    }

    pub(crate) async fn publish(&mut self, message: Message) {
        put(&self.broker, &message).await;
        self.published.push(message);
    }

    /// Publishes a copy of everything under new message ids.
    pub(crate) async fn publish_all_again(&self) {
        for message in &self.published {
            put(&self.broker, &copy(message)).await;
        }
    }

    pub(crate) async fn drain(&self, router: Router) -> InboxReport {
        let inbox = self.test.inbox(&self.broker, router);
        let inbox = inbox.with_config(slow()).with_state(self.orders.clone());
        within(inbox.drain()).await.unwrap()
    }

    pub(crate) fn consumers(&self) -> Consumers<MemorySubscriber> {
        Consumers::new(self.test.db.clone(), self.broker.subscriber()).with_router(before::router())
    }

    /// Pauses a consumer, long enough ago for everybody to have noticed.
    pub(crate) async fn pause(&self, consumer: &str) {
        let paused = PausedConsumers::new(self.test.db.clone());
        assert!(paused.pause(consumer, "it moves").await.unwrap());
        let long_ago = match self.test.sql_backend() {
            sea_orm::DbBackend::Sqlite => "0",
            _ => "TIMESTAMP '2026-01-02 03:04:05'",
        };
        self.test
            .execute(&format!("UPDATE inbox_pauses SET paused_at = {long_ago}"))
            .await;
    }

    /// How often each message took effect, in the order of what was published first.
    pub(crate) async fn effects(&self) -> Vec<usize> {
        let mut effects = Vec::new();
        for (kind, id, line) in [
            ("order", 1, 1),
            ("order", 2, 1),
            ("parcel", 1, 1),
            ("parcel", 1, 2),
            ("invoice", 1, 7),
        ] {
            let lines = lines(&self.test, kind, id).await;
            effects.push(lines.into_iter().filter(|noted| *noted == line).count());
        }
        effects
    }
}

//! The events of the demo: two of the order, one of the shipment.

use outbox_core::{DomainEvent, EventError, Limits, NewMessage};
use serde::{Deserialize, Serialize};

use crate::order::{Line, Order};
use crate::values::Day;

/// A customer placed an order.
#[derive(Debug, Clone, PartialEq, Eq, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
pub(crate) struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    pub(crate) customer_id: String,
    pub(crate) order_date: Day,
    pub(crate) lines: Vec<Line>,
}

/// An order was shipped.
#[derive(Debug, Clone, PartialEq, Eq, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "shipped", version = 1)]
pub(crate) struct OrderShipped {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    pub(crate) shipped_date: Day,
}

/// The carrier took the shipment over. Recorded by the consumer `shipping`, in an outbox of its own.
#[derive(Debug, Clone, PartialEq, Eq, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "dispatched", version = 1)]
pub(crate) struct ShipmentDispatched {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    pub(crate) shipped_date: Day,
}

impl OrderPlaced {
    /// The event of a new order.
    pub(crate) fn of(order: &Order) -> Self {
        let Order {
            order_id,
            customer_id,
            order_date,
            lines,
            ..
        } = order.clone();
        Self {
            order_id,
            customer_id,
            order_date,
            lines,
        }
    }

    /// Checks that the event can be recorded, before anything is saved.
    pub(crate) fn check(&self) -> Result<(), EventError> {
        NewMessage::from_event(self)?.check(&Limits::default())
    }
}

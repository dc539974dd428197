//! The events of the demo: two for orders, one for shipments.

use outbox_core::DomainEvent;
use serde::{Deserialize, Serialize};
use time::Date;

use crate::order::{Line, Order, day};

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
pub(crate) struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    pub(crate) customer_id: String,
    #[serde(with = "day")]
    pub(crate) order_date: Date,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "shipped", version = 1)]
pub(crate) struct OrderShipped {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    #[serde(with = "day")]
    pub(crate) shipped_date: Date,
}

/// A shipment of an order. The consumer `shipping` records it in its own outbox.
#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "dispatched", version = 1)]
pub(crate) struct ShipmentDispatched {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: i64,
    #[serde(with = "day")]
    pub(crate) shipped_date: Date,
}

impl From<&Order> for OrderPlaced {
    fn from(order: &Order) -> Self {
        Self {
            order_id: order.order_id,
            customer_id: order.customer_id.clone(),
            order_date: order.order_date,
            lines: order.lines.clone(),
        }
    }
}

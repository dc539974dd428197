//! The order book: what the service reads, from files or a generator.
//!
//! Invariant: an [`Order`] is valid, however it came to be: positive id, at least one line, and events that may be recorded. Absent here:
//! where it comes from ([`crate::input`], [`crate::generate`]).

use serde::{Deserialize, Serialize};

use crate::values::{Day, Discount, line_amount_cents};

/// An order with its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) order_id: i64,
    pub(crate) customer_id: String,
    pub(crate) order_date: Day,
    pub(crate) shipped_date: Option<Day>,
    pub(crate) lines: Vec<Line>,
}

/// One product of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) product_id: i64,
    pub(crate) quantity: i64,
    pub(crate) unit_price_cents: i64,
    pub(crate) discount: Discount,
}

impl Line {
    /// What the customer pays for the line.
    pub(crate) fn amount_cents(&self) -> i64 {
        line_amount_cents(self.unit_price_cents, self.quantity, self.discount)
    }
}

/// Numbers of a run that follow from its orders alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expected {
    pub(crate) orders: u64,
    pub(crate) shipped: u64,
}

impl Expected {
    /// Counts the orders.
    pub(crate) fn of(orders: &[Order]) -> Self {
        let shipped = orders.iter().filter(|order| order.shipped_date.is_some()).count();
        Self {
            orders: orders.len() as u64,
            shipped: shipped as u64,
        }
    }

    /// Each order is placed; each shipped one is shipped, and dispatched by the consumer `shipping`.
    pub(crate) fn messages(self) -> u64 {
        self.orders + 2 * self.shipped
    }
}

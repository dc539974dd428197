//! The order book: the service's input, from files or from a generator.
//!
//! Invariant: every [`Order`] is valid: it has a positive id, at least one line, and events that can be recorded. Not here: where orders come from,
//! see [`crate::input`] and [`crate::generate`].

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
    /// The price of the line in cents, after the discount.
    pub(crate) fn amount_cents(&self) -> i64 {
        line_amount_cents(self.unit_price_cents, self.quantity, self.discount)
    }
}

/// Expected numbers of a run, derived from its orders alone.
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

    /// The expected number of messages: one per order placed, and for each shipped order one more and one by the consumer `shipping`.
    pub(crate) fn messages(self) -> u64 {
        self.orders + 2 * self.shipped
    }
}

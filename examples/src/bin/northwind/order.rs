//! The order book: the service's input, from files or from a generator. Prices are whole cents and
//! discounts whole billionths, without floating point.

use serde::{Deserialize, Serialize};
use time::Date;

use crate::input;

time::serde::format_description!(pub(crate) day, Date, "[year]-[month]-[day]");

pub(crate) const BILLION: u32 = 1_000_000_000;

#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    #[serde(rename = "orderID")]
    pub(crate) order_id: i64,
    #[serde(rename = "customerID")]
    pub(crate) customer_id: String,
    #[serde(rename = "orderDate", with = "day")]
    pub(crate) order_date: Date,
    #[serde(rename = "shippedDate", deserialize_with = "input::day_or_null")]
    pub(crate) shipped_date: Option<Date>,
    #[serde(skip)]
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) product_id: i64,
    pub(crate) quantity: u16,
    pub(crate) unit_price_cents: u32,
    pub(crate) discount_billionths: u32,
}

impl Line {
    /// Unit price × quantity × (1 − discount), rounded half up to whole cents.
    pub(crate) fn amount_cents(&self) -> i64 {
        let billion = i128::from(BILLION);
        let price = i128::from(self.unit_price_cents) * i128::from(self.quantity);
        let scaled = price * (billion - i128::from(self.discount_billionths));
        i64::try_from((scaled + billion / 2) / billion).unwrap_or(i64::MAX)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    pub(crate) orders: u64,
    pub(crate) shipped: u64,
}

impl Expected {
    pub(crate) fn of(orders: &[Order]) -> Self {
        let shipped = orders.iter().filter(|order| order.shipped_date.is_some()).count();
        Self {
            orders: orders.len() as u64,
            shipped: shipped as u64,
        }
    }

    /// One message per placed order, and two for each shipped order: one from the service, one from
    /// the consumer `shipping`.
    pub(crate) fn messages(self) -> u64 {
        self.orders + 2 * self.shipped
    }

    pub(crate) fn effects(self) -> [u64; 4] {
        [self.orders, self.orders, self.shipped, self.shipped]
    }
}

//! The consumers' results: units per product, amounts per customer, shipments and notices per
//! order.
//! Invariant: the ledger balances only if the consumers' tables and the input give the same
//! results. The code that adds up the input is separate from events, service and consumers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use sea_orm::{DatabaseConnection, TryGetable};
use serde::Serialize;

use crate::database::rows;
use crate::evidence::Connections;
use crate::order::{Line, Order};
use crate::setup::Part;

/// Results by key. Keys sort as in the exports: numbers by value, customers by bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) units: BTreeMap<i64, i64>,
    pub(crate) amounts_cents: BTreeMap<String, i64>,
    pub(crate) shipments: BTreeMap<i64, String>,
    pub(crate) notices: BTreeMap<i64, String>,
}

impl Books {
    pub(crate) async fn read(dbs: &Connections, notices: &[String]) -> Result<Self> {
        let notice = |line: &String| {
            let (order_id, day) = line.get(37..)?.split_once(' ')?;
            Some((order_id.parse().ok()?, day.to_owned()))
        };
        let notices = notices.iter().map(notice).collect::<Option<_>>();
        let [inventory, billing, shipping] =
            [Part::Inventory, Part::Billing, Part::Shipping].map(|part| &dbs[&part]);
        Ok(Self {
            units: pairs(inventory, "product_id, units FROM stock").await?,
            amounts_cents: pairs(billing, "customer_id, amount_cents FROM accounts").await?,
            shipments: pairs(shipping, "order_id, shipped_date FROM shipments").await?,
            notices: notices.context("a line of the notices is malformed")?,
        })
    }

    pub(crate) fn of(orders: &[Order]) -> Self {
        let mut books = Self::default();
        for order in orders {
            let amount = books.amounts_cents.entry(order.customer_id.clone()).or_default();
            for line in &order.lines {
                *amount += amount_cents(line);
                *books.units.entry(line.product_id).or_default() += i64::from(line.quantity);
            }
            if let Some(day) = order.shipped_date {
                books.shipments.insert(order.order_id, day.to_string());
                books.notices.insert(order.order_id, day.to_string());
            }
        }
        books
    }

    pub(crate) fn export(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let [inventory, billing, shipments] =
            ["inventory.csv", "billing.csv", "shipments.csv"].map(|name| folder.join(name));
        write(&inventory, "product_id,units", &self.units)?;
        write(&billing, "customer_id,amount_cents", &self.amounts_cents)?;
        write(&shipments, "order_id,shipped_date", &self.shipments)
    }
}

/// The discounted price of a line, rounded half up to cents.
fn amount_cents(line: &Line) -> i64 {
    let price = u128::from(line.unit_price_cents) * u128::from(line.quantity);
    let discount = (price * u128::from(line.discount_billionths) + 499_999_999) / 1_000_000_000;
    i64::try_from(price - discount).unwrap_or(i64::MAX)
}

async fn pairs<K: TryGetable + Ord, V: TryGetable>(
    db: &DatabaseConnection,
    what: &str,
) -> Result<BTreeMap<K, V>> {
    let rows = rows(db, &format!("SELECT {what}")).await?;
    rows.iter()
        .map(|row| Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?)))
        .collect()
}

fn write<K: Serialize, V: Serialize>(path: &Path, header: &str, rows: &BTreeMap<K, V>) -> Result<()> {
    let mut file =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.write_record(header.split(','))?;
    for row in rows {
        file.serialize(row)?;
    }
    Ok(file.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;

    #[test]
    fn both_ways_to_compute_an_amount_agree() {
        for line in generate(500).iter().flat_map(|order| &order.lines) {
            assert_eq!(amount_cents(line), line.amount_cents(), "{line:?}");
        }
    }
}

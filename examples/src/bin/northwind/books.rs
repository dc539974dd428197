//! The consumers' results: units per product, amounts per customer, shipments per order.
//!
//! They are computed twice: from the consumers' tables, and from the input. Invariant: the ledger balances only if both agree. The sums from the input
//! share no code with events, service and consumers, so an event that leaves something out and a handler that calculates wrongly are noticed.

use std::collections::BTreeMap;
use std::path::Path;

use sea_orm::{DbErr, QueryResult, TryGetable};

use crate::database::rows;
use crate::evidence::Connections;
use crate::failure::{Doing, Failure};
use crate::order::{Line, Order};
use crate::setup::Part;

/// The results of all consumers, by key. Keys sort as in the exports: numbers by value, customers by their bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) units: BTreeMap<i64, i64>,
    pub(crate) amounts_cents: BTreeMap<String, i64>,
    pub(crate) shipments: BTreeMap<i64, String>,
}

impl Books {
    /// Reads the consumers' tables.
    pub(crate) async fn read(dbs: &Connections) -> Result<Self, Failure> {
        let [inventory, billing, shipping] =
            [Part::Inventory, Part::Billing, Part::Shipping].map(|part| &dbs[&part]);
        Ok(Self {
            units: pairs(&rows(inventory, "SELECT product_id, units FROM stock").await?)?,
            amounts_cents: pairs(&rows(billing, "SELECT customer_id, amount_cents FROM accounts").await?)?,
            shipments: pairs(&rows(shipping, "SELECT order_id, shipped_date FROM shipments").await?)?,
        })
    }

    /// Computes the books from the input.
    pub(crate) fn of(orders: &[Order]) -> Self {
        let mut books = Self::default();
        for order in orders {
            let amount = books.amounts_cents.entry(order.customer_id.clone()).or_default();
            for line in &order.lines {
                *amount += amount_cents(line);
                *books.units.entry(line.product_id).or_default() += line.quantity;
            }
            if let Some(day) = order.shipped_date {
                books.shipments.insert(order.order_id, day.to_string());
            }
        }
        books
    }

    /// Writes `inventory.csv`, `billing.csv` and `shipments.csv`.
    pub(crate) fn export(&self, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder).or_cannot(format_args!("make the folder {}", folder.display()))?;
        write(
            &folder.join("inventory.csv"),
            ["product_id", "units"],
            &self.units,
        )?;
        write(
            &folder.join("billing.csv"),
            ["customer_id", "amount_cents"],
            &self.amounts_cents,
        )?;
        write(
            &folder.join("shipments.csv"),
            ["order_id", "shipped_date"],
            &self.shipments,
        )
    }
}

/// The price of a line, from the discount as it was written: in billionths, which no discount divides further.
fn amount_cents(line: &Line) -> i64 {
    const ONE: i128 = 1_000_000_000;
    let written = line.discount.to_string();
    let (whole, fraction) = written.split_once('.').unwrap_or((&written, ""));
    let billionths: i128 = format!("{whole}{fraction:0<9}").parse().unwrap_or(ONE);
    let price = i128::from(line.unit_price_cents) * i128::from(line.quantity);
    i64::try_from((price * (ONE - billionths) + ONE / 2) / ONE).unwrap_or(i64::MAX)
}

fn pairs<K: TryGetable + Ord, V: TryGetable>(rows: &[QueryResult]) -> Result<BTreeMap<K, V>, Failure> {
    let pair = |row: &QueryResult| -> Result<(K, V), DbErr> {
        Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?))
    };
    rows.iter()
        .map(pair)
        .collect::<Result<_, _>>()
        .or_cannot("read a consumer's table")
}

fn write<K: ToString, V: ToString>(
    path: &Path,
    header: [&str; 2],
    rows: &BTreeMap<K, V>,
) -> Result<(), Failure> {
    let write = || -> Result<(), csv::Error> {
        let mut file = csv::Writer::from_path(path)?;
        file.write_record(header)?;
        for (key, value) in rows {
            file.write_record([key.to_string(), value.to_string()])?;
        }
        Ok(file.flush()?)
    };
    write().or_cannot(format_args!("write {}", path.display()))
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

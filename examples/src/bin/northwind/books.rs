//! The consumers' results: units per product, amounts per customer, shipments per order.
//!
//! They are computed twice: from the consumers' tables, and from the committed messages. Invariant: the ledger balances only if both agree.

use std::collections::BTreeMap;
use std::path::Path;

use sea_orm::{DbErr, QueryResult, TryGetable};
use serde::Deserialize;

use crate::database::rows;
use crate::events::{OrderPlaced, OrderShipped};
use crate::evidence::{Committed, Connections};
use crate::failure::{Doing, Failure};
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

    /// Computes the books from the committed messages.
    pub(crate) fn of(committed: &[Committed]) -> Result<Self, Failure> {
        let mut books = Self::default();
        for message in committed {
            match message.event_type.as_str() {
                "order.placed" => books.place(&decode(message)?),
                "order.shipped" => {
                    let OrderShipped {
                        order_id,
                        shipped_date,
                    } = decode(message)?;
                    books.shipments.insert(order_id, shipped_date.to_string());
                }
                _ => {}
            }
        }
        Ok(books)
    }

    fn place(&mut self, order: &OrderPlaced) {
        let amount = self.amounts_cents.entry(order.customer_id.clone()).or_default();
        for line in &order.lines {
            *amount += line.amount_cents();
            *self.units.entry(line.product_id).or_default() += line.quantity;
        }
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

fn decode<T: for<'de> Deserialize<'de>>(message: &Committed) -> Result<T, Failure> {
    serde_json::from_slice(&message.payload)
        .or_cannot(format_args!("read the payload of message {}", message.id))
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

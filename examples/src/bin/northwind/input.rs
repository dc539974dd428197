//! Reads the order book from two CSV files, or generates one.
//!
//! Invariant: both files are checked completely before the first order is returned, so a malformed
//! row stops a run before anything is saved.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::de::{DeserializeOwned, Error as _, IntoDeserializer as _};
use serde::{Deserialize, Deserializer, Serialize};
use time::Date;

use crate::generate::generate;
use crate::order::{BILLION, Line, Order, day};

#[derive(Deserialize)]
struct LineRow {
    #[serde(rename = "orderID")]
    order_id: i64,
    #[serde(rename = "productID")]
    product_id: i64,
    quantity: u16,
    #[serde(rename = "unitPrice", deserialize_with = "scaled::<2, _>")]
    unit_price_cents: u32,
    #[serde(rename = "discount", deserialize_with = "scaled::<9, _>")]
    discount_billionths: u32,
}

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Source {
    /// Orders as CSV: orderID, customerID, orderDate, shippedDate.
    #[arg(long, requires = "lines", conflicts_with = "generate")]
    orders: Option<PathBuf>,
    /// Order lines as CSV: orderID, productID, unitPrice, quantity, discount.
    #[arg(long, requires = "orders")]
    lines: Option<PathBuf>,
    /// Generates this many orders instead of reading files.
    #[arg(long, default_value_t = 200)]
    generate: u32,
}

impl Source {
    pub(crate) fn read(&self) -> Result<Vec<Order>> {
        match (&self.orders, &self.lines) {
            (Some(orders), Some(lines)) => read(orders, lines),
            _ => Ok(generate(self.generate)),
        }
    }
}

fn read(order_file: &Path, line_file: &Path) -> Result<Vec<Order>> {
    let shown = order_file.display();
    let mut book = Vec::new();
    let mut by_id = HashMap::new();
    for (at, order) in rows::<Order>(order_file)? {
        let id = order.order_id;
        let before = by_id.insert(id, book.len());
        ensure!(before.is_none(), "{shown}: line {at}: order {id} is there twice");
        book.push((at, order));
    }
    for (at, row) in rows::<LineRow>(line_file)? {
        let place = format!("{}: line {at}", line_file.display());
        let id = row.order_id;
        let index = *by_id
            .get(&id)
            .with_context(|| format!("{place}: order {id} is not in {shown}"))?;
        ensure!(row.quantity > 0, "{place}: quantity is 0");
        ensure!(row.discount_billionths <= BILLION, "{place}: discount is above 1");
        book[index].1.lines.push(Line {
            product_id: row.product_id,
            quantity: row.quantity,
            unit_price_cents: row.unit_price_cents,
            discount_billionths: row.discount_billionths,
        });
    }
    for (at, order) in &book {
        let id = order.order_id;
        ensure!(
            !order.lines.is_empty(),
            "{shown}: line {at}: order {id} has no line"
        );
    }
    ensure!(!book.is_empty(), "{shown}: there is no order");
    Ok(book.into_iter().map(|(_, order)| order).collect())
}

fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<(u64, T)>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
    // The reader counts a carriage return as part of the next line. All times are midnight.
    let text = text.replace("\r\n", "\n").replace(" 00:00:00.000", "");
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let header = reader.headers()?.clone();
    let read = |record: csv::Result<csv::StringRecord>| {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        Ok((line, record.deserialize(Some(&header))?))
    };
    let rows: csv::Result<_> = reader.records().map(read).collect();
    rows.with_context(|| shown.to_string())
}

pub(crate) fn day_or_null<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Date>, D::Error> {
    match String::deserialize(field)? {
        null if null == "NULL" => Ok(None),
        text => day::deserialize(text.into_deserializer()).map(Some),
    }
}

/// Reads an unsigned decimal with at most `PLACES` digits after the point.
fn scaled<'de, const PLACES: usize, D: Deserializer<'de>>(field: D) -> Result<u32, D::Error> {
    let text = String::deserialize(field)?;
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = format!("{whole}{fraction:0<PLACES$}");
    let is_plain = !whole.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = (is_plain && fraction.len() <= PLACES).then(|| digits.parse().ok());
    number.flatten().ok_or_else(|| {
        D::Error::custom(format!(
            "`{text}` is too large or not a number with at most {PLACES} decimals"
        ))
    })
}

//! Reads the order book from two CSV files.
//!
//! Invariant: all or nothing. Both files are read and checked completely before the first order is returned. So a malformed row stops a run before
//! anything is saved, and the error names the file, the line and the reason.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::events::OrderPlaced;
use crate::order::{Line, Order};
use crate::values::{Day, QUANTITY_MAX, cents};

/// The text of a missing value in the files.
const MISSING: &str = "NULL";

/// Longest customer id, in characters: the width of the column it is stored in.
pub(crate) const CUSTOMER_ID_CHARS_MAX: usize = 64;

/// Reads orders and their lines, in the order of the file.
///
/// # Errors
///
/// The first mistake, by file and line.
pub(crate) fn read(orders: &Path, lines: &Path) -> Result<Vec<Order>, InputError> {
    let order_file = CsvFile::read(orders)?;
    let line_file = CsvFile::read(lines)?;
    let mut book = Vec::new();
    let mut by_id = HashMap::new();
    for row in order_file.rows(["orderID", "customerID", "orderDate", "shippedDate"])? {
        let order = parse_order(&row)?;
        if let Some((_, first)) = by_id.insert(order.order_id, (book.len(), row.line)) {
            return Err(row.error(format!("order {} is already on line {first}", order.order_id)));
        }
        book.push((order, row.line));
    }
    for row in line_file.rows(["orderID", "productID", "unitPrice", "quantity", "discount"])? {
        let order_id: i64 = row.number("orderID", 0)?;
        let Some((index, _)) = by_id.get(&order_id) else {
            return Err(row.error(format!("order {order_id} is not in {}", orders.display())));
        };
        book[*index].0.lines.push(parse_line(&row)?);
    }
    for (order, line) in &book {
        if order.lines.is_empty() {
            let reason = format!("order {} has no line in {}", order.order_id, lines.display());
            return Err(order_file.error(*line, reason));
        }
        OrderPlaced::of(order).check().map_err(|error| {
            order_file.error(
                *line,
                format!("order {} cannot be recorded: {error}", order.order_id),
            )
        })?;
    }
    Ok(book.into_iter().map(|(order, _)| order).collect())
}

fn parse_order(row: &Row<'_, 4>) -> Result<Order, InputError> {
    let customer_id = row.fields[1].clone();
    if customer_id.is_empty() || customer_id == MISSING {
        return Err(row.error("customerID is missing".to_owned()));
    }
    // Some collations ignore trailing spaces, so two customers could become one.
    if customer_id.trim() != customer_id || customer_id.contains(char::is_control) {
        let shown = customer_id.escape_debug();
        return Err(row.error(format!(
            "customerID `{shown}` has white space around it or a control character in it"
        )));
    }
    if customer_id.chars().count() > CUSTOMER_ID_CHARS_MAX {
        return Err(row.error(format!(
            "customerID is longer than {CUSTOMER_ID_CHARS_MAX} characters"
        )));
    }
    let shipped_date = if row.fields[3] == MISSING {
        None
    } else {
        Some(row.day("shippedDate", 3)?)
    };
    Ok(Order {
        order_id: row.id("orderID", 0)?,
        customer_id,
        order_date: row.day("orderDate", 2)?,
        shipped_date,
        lines: Vec::new(),
    })
}

fn parse_line(row: &Row<'_, 5>) -> Result<Line, InputError> {
    let quantity: i64 = row.number("quantity", 3)?;
    if !(1..=QUANTITY_MAX).contains(&quantity) {
        return Err(row.error(format!("quantity {quantity} is outside 1 to {QUANTITY_MAX}")));
    }
    Ok(Line {
        product_id: row.id("productID", 1)?,
        quantity,
        unit_price_cents: cents(&row.fields[2]).map_err(|reason| row.error(format!("unitPrice {reason}")))?,
        discount: row.fields[4]
            .parse()
            .map_err(|reason| row.error(format!("discount {reason}")))?,
    })
}

/// A file, read as a whole: demo input is small, and errors can then name the exact line.
struct CsvFile {
    path: PathBuf,
    text: String,
}

/// The wanted fields of one row.
struct Row<'f, const N: usize> {
    file: &'f CsvFile,
    line: usize,
    fields: [String; N],
}

impl CsvFile {
    fn read(path: &Path) -> Result<Self, InputError> {
        let path = path.to_owned();
        let bytes = fs::read(&path).map_err(|error| InputError {
            path: path.clone(),
            line: None,
            reason: format!("cannot be read: {error}"),
        })?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { path, text }),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let line = 1 + newlines(&error.as_bytes()[..valid]);
                Err(InputError {
                    path,
                    line: Some(line),
                    reason: "is not UTF-8".to_owned(),
                })
            }
        }
    }

    fn rows<const N: usize>(&self, columns: [&str; N]) -> Result<Vec<Row<'_, N>>, InputError> {
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_reader(self.text.as_bytes());
        let header = reader
            .headers()
            .map_err(|error| self.error(1, error.to_string()))?
            .clone();
        let mut indices = [0; N];
        for (index, column) in indices.iter_mut().zip(columns) {
            let mut found = header
                .iter()
                .enumerate()
                .filter(|(_, name)| *name == column)
                .map(|(at, _)| at);
            *index = found
                .next()
                .ok_or_else(|| self.error(1, format!("column {column} is missing")))?;
            if found.next().is_some() {
                return Err(self.error(1, format!("column {column} is there twice")));
            }
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            let record =
                record.map_err(|error| self.error(self.line_of(error.position()), error.to_string()))?;
            let line = self.line_of(record.position());
            if record.len() != header.len() {
                let reason = format!(
                    "has {} columns, but the header has {}",
                    record.len(),
                    header.len()
                );
                return Err(self.error(line, reason));
            }
            let fields = indices.map(|index| record.get(index).unwrap_or_default().to_owned());
            rows.push(Row {
                file: self,
                line,
                fields,
            });
        }
        Ok(rows)
    }

    /// The line on which a record starts. The reader's own count points before the previous record's line end and before blank lines.
    fn line_of(&self, position: Option<&csv::Position>) -> usize {
        let bytes = self.text.as_bytes();
        let at = position.map_or(0, |position| {
            usize::try_from(position.byte()).unwrap_or(usize::MAX)
        });
        let at = at.min(bytes.len());
        let line_ends = bytes[at..]
            .iter()
            .take_while(|byte| matches!(byte, b'\r' | b'\n'))
            .count();
        1 + newlines(&bytes[..at + line_ends])
    }

    fn error(&self, line: usize, reason: String) -> InputError {
        InputError {
            path: self.path.clone(),
            line: Some(line),
            reason,
        }
    }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

impl<const N: usize> Row<'_, N> {
    fn number<T: FromStr>(&self, column: &str, index: usize) -> Result<T, InputError> {
        let text = &self.fields[index];
        text.parse().map_err(|_| {
            self.error(format!(
                "{column} `{}` is not a whole number",
                text.escape_debug()
            ))
        })
    }

    fn id(&self, column: &str, index: usize) -> Result<i64, InputError> {
        let id = self.number(column, index)?;
        if id > 0 {
            Ok(id)
        } else {
            Err(self.error(format!("{column} {id} is not positive")))
        }
    }

    /// Reads a day. The files add a time of day, which is always midnight.
    fn day(&self, column: &str, index: usize) -> Result<Day, InputError> {
        let text = &self.fields[index];
        let day = text.strip_suffix(" 00:00:00.000").unwrap_or(text);
        day.parse()
            .map_err(|reason| self.error(format!("{column} {reason}")))
    }

    fn error(&self, reason: String) -> InputError {
        self.file.error(self.line, reason)
    }
}

/// A mistake in the input, and its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InputError {
    path: PathBuf,
    line: Option<usize>,
    reason: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, reason } = self;
        match line {
            Some(line) => write!(f, "{}:{line}: {reason}", path.display()),
            None => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for InputError {}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: &str = "orderID,customerID,orderDate,shippedDate,city";
    const LINES: &str = "orderID,productID,unitPrice,quantity,discount";

    fn check(orders: &[u8], lines: &[u8]) -> Result<Vec<Order>, (String, Option<usize>)> {
        let folder = tempfile::tempdir().unwrap();
        let (order_path, line_path) = (folder.path().join("orders.csv"), folder.path().join("lines.csv"));
        fs::write(&order_path, orders).unwrap();
        fs::write(&line_path, lines).unwrap();
        read(&order_path, &line_path).map_err(|error| {
            (
                error.path.file_name().unwrap().to_str().unwrap().to_owned(),
                error.line,
            )
        })
    }

    #[test]
    fn rows_become_orders_whatever_the_line_ends_are() {
        for end in ["\n", "\r\n"] {
            let orders = [
                ORDERS,
                "7,ÄÖ,1996-07-04 00:00:00.000,NULL,\"a\nb\"",
                "8,X,1996-07-05,1996-07-09,c",
                "",
            ]
            .join(end);
            let lines = [LINES, "8,1,9.80,2,0.05", "7,2,14.00,12,0", ""].join(end);
            let read = check(orders.as_bytes(), lines.as_bytes()).unwrap();
            assert_eq!(read.len(), 2);
            assert_eq!(read[0].customer_id, "ÄÖ");
            assert_eq!(read[0].shipped_date, None);
            assert_eq!(read[1].shipped_date.unwrap().to_string(), "1996-07-09");
            assert_eq!(read[1].lines[0].amount_cents(), 1862);
        }
    }

    #[test]
    fn lines_are_counted_as_an_editor_shows_them() {
        for end in ["\n", "\r\n"] {
            // A field over two lines, a blank line, then the malformed row.
            let orders = [
                ORDERS,
                "7,A,1996-07-04,NULL,\"a\nb\"",
                "",
                "x,A,1996-07-04,NULL,c",
            ]
            .join(end);
            assert_eq!(
                check(orders.as_bytes(), LINES.as_bytes()),
                Err(("orders.csv".to_owned(), Some(5))),
                "{end:?}"
            );
        }
    }
}

//! Text output of values.

use std::fmt::Write as _;

use crate::admin::Columns;
pub(super) use crate::admin::words::{compact as duration, counted, utc as time};

use crate::output::plain;

pub(super) fn lines<T: Columns>(thing: &T) -> String {
    let values = T::COLUMNS
        .iter()
        .map(|column| (column.name, (column.text)(thing)));
    let values: Vec<(&str, String)> = values.filter(|(_, value)| !value.is_empty()).collect();
    let width = values
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for (name, value) in values {
        let _ = writeln!(text, "{name:<width$}  {}", plain(&value));
    }
    text
}

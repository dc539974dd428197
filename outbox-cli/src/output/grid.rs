//! Tables without borders, and comma-separated values.

use std::fmt::Write as _;

use crate::plain::plain;

/// A column of things of one kind.
pub(crate) struct Column<T> {
    /// Its name in the header.
    pub(crate) name: &'static str,
    /// Whether only a wide table has it.
    pub(crate) is_wide: bool,
    /// Its text. An empty one is shown as `-`.
    pub(crate) text: fn(&T) -> String,
}

impl<T> Column<T> {
    /// A column of every table.
    pub(crate) const fn new(name: &'static str, text: fn(&T) -> String) -> Self {
        Self {
            name,
            is_wide: false,
            text,
        }
    }

    /// A column of wide tables.
    pub(crate) const fn wide(name: &'static str, text: fn(&T) -> String) -> Self {
        Self {
            name,
            is_wide: true,
            text,
        }
    }
}

/// Aligned columns under a header.
pub(super) fn table<T>(columns: &[Column<T>], things: &[T], wide: bool) -> String {
    let columns: Vec<&Column<T>> = columns.iter().filter(|column| wide || !column.is_wide).collect();
    let header = columns.iter().map(|column| column.name.to_uppercase()).collect();
    let mut rows: Vec<Vec<String>> = vec![header];
    for thing in things {
        let cell = |column: &&Column<T>| match plain(&(column.text)(thing)) {
            text if text.is_empty() => "-".to_owned(),
            text => text,
        };
        rows.push(columns.iter().map(cell).collect());
    }
    let width = |index: usize| {
        rows.iter()
            .map(|row| row[index].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a `String` does not fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// All columns as comma-separated values.
pub(super) fn csv<T>(columns: &[Column<T>], things: &[T]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(columns.iter().map(|column| column.name))?;
    for thing in things {
        // The file may be shown on a terminal.
        writer.write_record(columns.iter().map(|column| plain(&(column.text)(thing))))?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::plain;

    const COLUMNS: &[Column<(&str, &str)>] = &[
        Column::new("id", |thing| thing.0.to_owned()),
        Column::wide("error", |thing| thing.1.to_owned()),
    ];

    #[test]
    fn columns_are_aligned_and_empty_cells_are_dashes() {
        let things = [("a", ""), ("longer", "x")];
        assert_eq!(
            table(COLUMNS, &things, true),
            "ID      ERROR\na       -\nlonger  x\n"
        );
        assert_eq!(table(COLUMNS, &things, false), "ID\na\nlonger\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[31m\nb\u{202e}ü"), "a\\u{1b}[31m\\nb\\u{202e}ü");
        assert!(!table(COLUMNS, &[("a\u{1b}[2J", "")], false).contains('\u{1b}'));
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal_by_way_of_a_csv_file() {
        let text = csv(COLUMNS, &[("a\u{1b}[2J", "b\r\u{9b}c\u{202e}")]).unwrap();
        assert_eq!(text, "id,error\na\\u{1b}[2J,b\\r\\u{9b}c\\u{202e}\n");
    }

    #[test]
    fn values_with_commas_and_quotes_stay_one_value() {
        let text = csv(COLUMNS, &[("a,b", "say \"no\"")]).unwrap();
        assert_eq!(text, "id,error\n\"a,b\",\"say \"\"no\"\"\"\n");
    }
}

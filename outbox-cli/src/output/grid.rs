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
        rows.push(columns.iter().map(|column| cell(column, thing)).collect());
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
        line(&mut text, row, &widths);
    }
    text
}

/// A table whose rows come one by one: a column grows with the widest cell so far.
pub(super) struct Growing<T: 'static> {
    columns: Vec<&'static Column<T>>,
    widths: Vec<usize>,
    has_header: bool,
}

impl<T: 'static> Growing<T> {
    pub(super) fn new(columns: &'static [Column<T>], wide: bool) -> Self {
        let columns: Vec<_> = columns.iter().filter(|column| wide || !column.is_wide).collect();
        Self {
            widths: vec![0; columns.len()],
            columns,
            has_header: false,
        }
    }

    /// The line of a row, below the header if it is the first.
    pub(super) fn row(&mut self, thing: &T) -> String {
        let cells: Vec<String> = self.columns.iter().map(|column| cell(column, thing)).collect();
        let header: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.name.to_uppercase())
            .collect();
        for (width, (cell, name)) in self.widths.iter_mut().zip(cells.iter().zip(&header)) {
            *width = (*width).max(cell.chars().count()).max(name.len());
        }
        let mut text = String::new();
        if !self.has_header {
            line(&mut text, &header, &self.widths);
            self.has_header = true;
        }
        line(&mut text, &cells, &self.widths);
        text
    }
}

/// What a table shows of a thing in a column.
fn cell<T>(column: &Column<T>, thing: &T) -> String {
    match plain(&value(column, thing)) {
        text if text.is_empty() => "-".to_owned(),
        text => text,
    }
}

/// The text of a column.
fn value<T>(column: &Column<T>, thing: &T) -> String {
    (column.text)(thing)
}

/// A line of cells.
fn line(text: &mut String, cells: &[String], widths: &[usize]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        // Writing to a `String` does not fail.
        let _ = write!(line, "{cell:<width$}  ");
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// All columns as comma-separated values.
pub(super) fn csv<T>(columns: &[Column<T>], things: &[T]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(columns.iter().map(|column| column.name))?;
    for thing in things {
        // The file may be shown on a terminal.
        writer.write_record(columns.iter().map(|column| defused(plain(&value(column, thing)))))?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A cell that a spreadsheet shows as text: an id or an error text may look like a formula. A number stays one.
fn defused(cell: String) -> String {
    let looks_like_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    match looks_like_formula && cell.parse::<f64>().is_err() {
        true => format!("'{cell}"),
        false => cell,
    }
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
    fn a_table_whose_rows_come_one_by_one_has_one_header_and_grows() {
        let mut table = Growing::new(COLUMNS, true);
        assert_eq!(table.row(&("a", "x")), "ID  ERROR\na   x\n");
        assert_eq!(table.row(&("longer", "y")), "longer  y\n");
        assert_eq!(table.row(&("a", "")), "a       -\n");
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
    fn a_cell_of_csv_is_no_formula() {
        for cell in ["=HYPERLINK(1)", "+1+1", "-1-1", "@SUM(1)", "-", "\tx", "\rx"] {
            assert!(defused(cell.to_owned()).starts_with('\''), "{cell}");
        }
        for cell in ["", "-1", "+0.5", "a=1", "0191-7"] {
            assert_eq!(defused(cell.to_owned()), cell);
        }
        let text = csv(COLUMNS, &[("=1", "-")]).unwrap();
        assert_eq!(text, "id,error\n'=1,'-\n");
    }

    #[test]
    fn values_with_commas_and_quotes_stay_one_value() {
        let text = csv(COLUMNS, &[("a,b", "say \"no\"")]).unwrap();
        assert_eq!(text, "id,error\n\"a,b\",\"say \"\"no\"\"\"\n");
    }
}

//! Tables without borders.

use std::fmt::Write as _;

use crate::admin::Column;

use crate::plain::plain;

pub(super) fn table<T>(columns: &[Column<T>], things: &[T]) -> String {
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

fn cell<T>(column: &Column<T>, thing: &T) -> String {
    match plain(&(column.text)(thing)) {
        text if text.is_empty() => "-".to_owned(),
        text => text,
    }
}

fn line(text: &mut String, cells: &[String], widths: &[usize]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let _ = write!(line, "{cell:<width$}  ");
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::plain;

    const COLUMNS: &[Column<(&str, &str)>] = &[
        Column::new("id", |thing| thing.0.to_owned()),
        Column::new("error", |thing| thing.1.to_owned()),
    ];

    #[test]
    fn columns_are_aligned_and_empty_cells_are_dashes() {
        let things = [("a", ""), ("longer", "x")];
        assert_eq!(table(COLUMNS, &things), "ID      ERROR\na       -\nlonger  x\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[31m\nb\u{202e}ü"), "a\\u{1b}[31m\\nb\\u{202e}ü");
        assert!(!table(COLUMNS, &[("a\u{1b}[2J", "")]).contains('\u{1b}'));
    }
}

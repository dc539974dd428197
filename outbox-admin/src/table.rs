//! The columns of values: the command line makes tables and lines of them, and the dashboard makes HTML of them.

use crate::next::Command;

/// A column of a table, or a line about one value.
#[derive(Debug)]
pub struct Column<T> {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// The text of a value; empty if there is none. It is not safe for a terminal or for HTML yet.
    pub text: fn(&T) -> String,
    /// The command that shows more of what the text names.
    pub shows: Option<fn(&T) -> Option<Command>>,
}

impl<T> Column<T> {
    /// A column.
    pub const fn new(name: &'static str, text: fn(&T) -> String) -> Self {
        Self {
            name,
            text,
            shows: None,
        }
    }

    /// A column with the command that shows more of what its text names.
    pub const fn linked(
        name: &'static str,
        text: fn(&T) -> String,
        shows: fn(&T) -> Option<Command>,
    ) -> Self {
        Self {
            name,
            text,
            shows: Some(shows),
        }
    }
}

/// A value with columns.
pub trait Columns: Sized + 'static {
    /// Its columns, in the order in which people read them.
    const COLUMNS: &'static [Column<Self>];
}

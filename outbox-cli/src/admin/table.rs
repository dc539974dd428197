//! Columns shared by terminal tables and the dashboard.

use crate::admin::next::Command;

/// A column.
#[derive(Debug)]
pub struct Column<T> {
    /// Name, in lower case with underscores.
    pub name: &'static str,
    /// Cell text; empty if absent. Not escaped.
    pub text: fn(&T) -> String,
    /// Command that shows details.
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

    /// A column with a command that shows details.
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

/// Columns of a row type.
pub trait Columns: Sized + 'static {
    /// Columns in display order.
    const COLUMNS: &'static [Column<Self>];
}

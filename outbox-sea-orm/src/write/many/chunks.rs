//! Splits models into statements by rows, values and bytes.

use std::iter::Peekable;

use sea_orm::{ActiveModelTrait, ActiveValue, DbBackend, EntityTrait, Iterable as _};

use crate::write::packet::{UNASKED_BYTES_MAX, value_bytes};

const ROWS_MAX: usize = 1_000;

/// Maximum bytes per statement; a larger row is written alone.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// MariaDB turns a list of 1,000 keys into a subquery, and may lock all rows.
const MYSQL_ROWS_MAX: usize = 500;

fn rows_max(backend: DbBackend, columns: usize) -> usize {
    let (values_max, rows_max) = match backend {
        DbBackend::Sqlite => (32_766, ROWS_MAX),
        DbBackend::MySql => (65_535, MYSQL_ROWS_MAX),
        _ => (65_535, ROWS_MAX),
    };
    (values_max / columns.max(1)).clamp(1, rows_max)
}

/// On MySQL and MariaDB, statements up to this size need no query for `max_allowed_packet`.
fn bytes_max(backend: DbBackend) -> usize {
    match backend {
        DbBackend::MySql => UNASKED_BYTES_MAX,
        _ => BYTES_MAX,
    }
}

/// For models with different columns set, SeaORM would write NULL instead of defaults.
pub(super) struct Chunks<I: Iterator> {
    models: Peekable<I>,
    backend: DbBackend,
}

impl<A: ActiveModelTrait, I: Iterator<Item = A>> Chunks<I> {
    pub(super) fn new(models: I, backend: DbBackend) -> Self {
        Self {
            models: models.peekable(),
            backend,
        }
    }

    pub(super) fn next(&mut self) -> Option<Vec<A>> {
        let first = self.models.next()?;
        let columns = set_columns(&first);
        let rows_max = rows_max(self.backend, columns.iter().filter(|is_set| **is_set).count());
        let bytes_max = bytes_max(self.backend);
        let mut bytes = size_bytes(&first);
        let mut chunk = vec![first];
        while chunk.len() < rows_max {
            let fits = |model: &A| {
                bytes += size_bytes(model);
                bytes <= bytes_max && set_columns(model) == columns
            };
            match self.models.next_if(fits) {
                Some(model) => chunk.push(model),
                None => break,
            }
        }
        Some(chunk)
    }
}

fn set_columns<A: ActiveModelTrait>(model: &A) -> Vec<bool> {
    <A::Entity as EntityTrait>::Column::iter()
        .map(|column| !model.is_not_set(column))
        .collect()
}

fn size_bytes<A: ActiveModelTrait>(model: &A) -> usize {
    <A::Entity as EntityTrait>::Column::iter()
        .map(|column| match model.get(column) {
            ActiveValue::Set(value) | ActiveValue::Unchanged(value) => value_bytes(&value),
            ActiveValue::NotSet => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use sea_orm::{NotSet, Set};

    use super::*;

    mod note {
        use sea_orm::entity::prelude::*;

        #[sea_orm::model]
        #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
        #[sea_orm(table_name = "notes")]
        pub(super) struct Model {
            #[sea_orm(primary_key)]
            pub id: i32,
            pub text: String,
        }

        impl ActiveModelBehavior for ActiveModel {}
    }

    fn sizes(models: impl IntoIterator<Item = note::ActiveModel>) -> Vec<usize> {
        let mut chunks = Chunks::new(models.into_iter(), DbBackend::Postgres);
        std::iter::from_fn(|| chunks.next())
            .map(|chunk| chunk.len())
            .collect()
    }

    fn note(id: Option<i32>, text: &str) -> note::ActiveModel {
        note::ActiveModel {
            id: id.map_or(NotSet, Set),
            text: Set(text.to_owned()),
        }
    }

    #[test]
    fn statements_are_bounded_by_rows_values_and_bytes() {
        assert!(sizes([]).is_empty());
        assert_eq!(sizes((0..2_500).map(|_| note(None, "a"))), [1_000, 1_000, 500]);
        let large = "x".repeat(3 * 1024 * 1024);
        assert_eq!(sizes((0..3).map(|_| note(None, &large))), [1, 1, 1]);
        assert_eq!(bytes_max(DbBackend::MySql), 512 * 1024);
        assert_eq!(rows_max(DbBackend::Sqlite, 60), 546);
        assert_eq!(rows_max(DbBackend::MySql, 60), 500);
        assert_eq!(rows_max(DbBackend::Postgres, 100_000), 1);
    }

    #[test]
    fn models_with_different_columns_get_separate_statements() {
        let notes = [
            note(None, "a"),
            note(None, "b"),
            note(Some(7), "c"),
            note(None, "d"),
        ];
        assert_eq!(sizes(notes), [2, 1, 1]);
    }
}

//! The statements for many rows.
//!
//! Invariant: the rows that are returned are those that the statement has written. MariaDB returns those of an insert; updated and deleted ones it
//! does not return to SeaORM, nor does MySQL: they are locked before, and read in the same transaction.

use sea_orm::sea_query::{
    Expr, ExprTrait as _, IntoValueTuple as _, MysqlQueryBuilder, OnConflict, Query, ValueTuple,
};
use sea_orm::{
    ActiveModelTrait as _, ColumnTrait, Condition, ConnectionTrait as _, DbBackend, DbErr, EntityTrait,
    FromQueryResult as _, InsertMany, IntoActiveModel, Iterable as _, PrimaryKeyToColumn as _,
    PrimaryKeyTrait, QueryFilter as _, QueryOrder as _, QuerySelect as _, QueryTrait as _, Statement,
    UpdateMany, Value,
};

use crate::error::SaveError;
use crate::write::packet;
use crate::write::transaction::OutboxTransaction;

type Key<E> = <<E as EntityTrait>::PrimaryKey as PrimaryKeyTrait>::ValueType;

/// Inserts chunks of models, and returns the rows.
pub(super) struct Insert<'t, E> {
    tx: &'t OutboxTransaction,
    on_conflict: Option<OnConflict>,
    /// Whether the server is MariaDB, once it was asked.
    is_mariadb: Option<bool>,
    entity: std::marker::PhantomData<fn() -> E>,
}

impl<'t, E> Insert<'t, E>
where
    E: EntityTrait,
    E::Model: IntoActiveModel<E::ActiveModel> + Send,
    E::ActiveModel: Send,
{
    pub(super) fn new(tx: &'t OutboxTransaction, on_conflict: Option<OnConflict>) -> Self {
        Self {
            tx,
            on_conflict,
            is_mariadb: None,
            entity: std::marker::PhantomData,
        }
    }

    pub(super) async fn chunk(&mut self, models: Vec<E::ActiveModel>) -> Result<Vec<E::Model>, SaveError> {
        let number = models.len();
        // MySQL and MariaDB end the connection if a statement is too large for them. Only a row that is alone in its chunk can be. The size is known
        // before the await: otherwise the active model would have to be `Sync`.
        let size_bytes = match &*models {
            [model] => packet::size_bytes(model, false, self.tx.get_database_backend()),
            _ => 0,
        };
        packet::check(size_bytes, table::<E>, self.tx).await?;
        let saved = self.write(models).await?;
        // With a conflict, a row may be left alone.
        if self.on_conflict.is_none() && saved.len() != number {
            return Err(SaveError::Unsupported {
                why: "the database has written other rows than the models say; give them keys that it keeps as they are, or none",
            });
        }
        Ok(saved)
    }

    async fn write(&mut self, models: Vec<E::ActiveModel>) -> Result<Vec<E::Model>, SaveError> {
        // The keys of the models, if each has one.
        let keys: Option<Vec<_>> = if self.tx.support_returning() {
            None
        } else {
            models.iter().map(|model| model.get_primary_key_value()).collect()
        };
        let mut insert = E::insert_many(models);
        if let Some(on_conflict) = &self.on_conflict {
            insert = insert.on_conflict(on_conflict.clone());
        }
        if self.tx.support_returning() {
            return insert
                .exec_with_returning(self.tx)
                .await
                .map_err(SaveError::Database);
        }
        if self.on_conflict.is_none()
            && let Some(keys) = keys
        {
            insert.exec_without_returning(self.tx).await?;
            return Ok(find::<E>(self.tx, condition::<E>(keys, &[], self.tx.get_database_backend())).await?);
        }
        if self.is_mariadb().await? {
            return returning::<E>(self.tx, insert).await;
        }
        Err(SaveError::Unsupported {
            why: "MySQL does not return the rows of an insert; give each model its primary key, or save one by one",
        })
    }

    async fn is_mariadb(&mut self) -> Result<bool, DbErr> {
        if let Some(known) = self.is_mariadb {
            return Ok(known);
        }
        let ask = Statement::from_string(DbBackend::MySql, "SELECT VERSION()");
        let row = self.tx.query_one_raw(ask).await?;
        let version: String = row
            .map(|row| row.try_get_by_index(0))
            .transpose()?
            .unwrap_or_default();
        let known = version.contains("MariaDB");
        self.is_mariadb = Some(known);
        Ok(known)
    }
}

/// MariaDB's `INSERT … RETURNING`, which SeaORM does not write.
async fn returning<E: EntityTrait>(
    tx: &OutboxTransaction,
    insert: InsertMany<E::ActiveModel>,
) -> Result<Vec<E::Model>, SaveError>
where
    E::ActiveModel: Send,
{
    let mut statement = insert.build(DbBackend::MySql);
    if does_nothing(&statement.sql) {
        return Err(SaveError::Unsupported {
            why: "MariaDB does not say which rows an insert that ignores conflicts has written; update a column instead",
        });
    }
    let mut columns = Query::select();
    columns.exprs(
        E::Column::iter().map(|column| column.select_as(column.into_returning_expr(DbBackend::MySql))),
    );
    let columns = columns.to_string(MysqlQueryBuilder);
    statement.sql.push_str(" RETURNING ");
    statement.sql.push_str(columns.trim_start_matches("SELECT "));
    let rows = tx.query_all_raw(statement).await?;
    let models: Result<_, DbErr> = rows
        .iter()
        .map(|row| E::Model::from_query_result(row, ""))
        .collect();
    models.map_err(SaveError::Database)
}

/// Whether the end of an insert only sets columns to themselves, as SeaORM writes `DO NOTHING` for MySQL; or ignores duplicates altogether.
fn does_nothing(sql: &str) -> bool {
    let Some((_, action)) = sql.rsplit_once(" ON DUPLICATE KEY ") else {
        return false;
    };
    let Some(changes) = action.strip_prefix("UPDATE ") else {
        return true;
    };
    changes
        .split(", ")
        .all(|change| matches!(change.split_once(" = "), Some((column, value)) if column == value))
}

/// The primary keys of rows that are locked.
pub(super) struct Keys {
    values: Vec<ValueTuple>,
    /// Columns of PostgreSQL's type `character(n)`, which returns values padded with spaces.
    padded: Vec<bool>,
    backend: DbBackend,
}

impl Keys {
    /// For each chunk of rows, the number of rows and a condition on the primary key.
    pub(super) fn chunks<E: EntityTrait>(&self, keys_max: usize) -> impl Iterator<Item = (u64, Condition)> {
        self.values.chunks(keys_max).map(|keys| {
            let rows = condition::<E>(keys.iter().cloned(), &self.padded, self.backend);
            (keys.len() as u64, rows)
        })
    }
}

/// The primary keys of the rows that match, in their order, and locks the rows. (SQLite locks the database.)
pub(super) async fn keys<E: EntityTrait>(tx: &OutboxTransaction, filter: Condition) -> Result<Keys, DbErr> {
    let mut select = E::find().filter(filter).select_only();
    for key in E::PrimaryKey::iter() {
        select = select.column(key.into_column()).order_by_asc(key.into_column());
    }
    if tx.get_database_backend() != DbBackend::Sqlite {
        select = select.lock_exclusive();
    }
    let keys: Vec<Key<E>> = select.into_tuple().all(tx).await?;
    let values: Vec<_> = keys.into_iter().map(|key| key.into_value_tuple()).collect();
    Ok(Keys {
        padded: padded::<E>(tx, &values).await?,
        values,
        backend: tx.get_database_backend(),
    })
}

/// Columns of the primary key of PostgreSQL's type `character(n)`. Queries the database only if a key
/// ends with a space.
async fn padded<E: EntityTrait>(tx: &OutboxTransaction, keys: &[ValueTuple]) -> Result<Vec<bool>, DbErr> {
    let ends_with_space = |value: Value| matches!(value, Value::String(Some(text)) if text.ends_with(' '));
    if tx.get_database_backend() != DbBackend::Postgres
        || !keys.iter().cloned().flatten().any(ends_with_space)
    {
        return Ok(Vec::new());
    }
    let mut select = E::find().select_only().limit(1);
    for (n, key) in E::PrimaryKey::iter().enumerate() {
        let is_padded = Expr::cust_with_expr(
            "pg_catalog.pg_typeof($1) = 'pg_catalog.bpchar'::pg_catalog.regtype",
            Expr::col(key.into_column().as_column_ref()),
        );
        select = select.column_as(is_padded, format!("padded_{n}"));
    }
    let row = tx.query_one_raw(select.build(DbBackend::Postgres)).await?;
    let columns = 0..E::PrimaryKey::iter().count();
    row.into_iter()
        .flat_map(|row| columns.clone().map(move |n| row.try_get_by_index(n)))
        .collect()
}

fn condition<E: EntityTrait>(
    keys: impl IntoIterator<Item = ValueTuple>,
    padded: &[bool],
    backend: DbBackend,
) -> Condition {
    let columns: Vec<_> = E::PrimaryKey::iter().map(|key| key.into_column()).collect();
    let is_padded = |n: usize| padded.get(n).is_some_and(|is_padded| *is_padded);
    if let [column] = *columns {
        let values: Vec<Value> = keys.into_iter().flatten().collect();
        return Condition::all().add(among(column, values, is_padded(0), backend));
    }
    let row = |key: ValueTuple| {
        let equal = columns
            .iter()
            .zip(key)
            .enumerate()
            .map(|(n, (column, value))| match is_padded(n) {
                true => Expr::col(column.as_column_ref()).eq(Expr::val(value).cast_as("bpchar")),
                false => column.eq(value),
            });
        equal.fold(Condition::all(), Condition::add)
    };
    keys.into_iter().map(row).fold(Condition::any(), Condition::add)
}

/// Refuses a statement that has not written all locked rows.
///
/// Either the database does not find a row by the key that it has returned, or a trigger has
/// skipped the row.
pub(super) fn check_written<E: EntityTrait>(locked: u64, written: &[E::Model]) -> Result<(), SaveError> {
    let written = written.len() as u64;
    if written == locked {
        return Ok(());
    }
    Err(SaveError::RowsNotWritten {
        table: table::<E>(),
        locked,
        written,
    })
}

/// The column has one of these values.
#[cfg(feature = "postgres")]
fn among<C: ColumnTrait>(column: C, values: Vec<Value>, is_padded: bool, backend: DbBackend) -> Expr {
    use sea_orm::sea_query::ArrayType;
    use sea_orm::sea_query::extension::postgres::PgFunc;

    // One array instead of a thousand parameters. Not for a column whose values are cast, nor for types of which the driver may know no arrays.
    let is_plain = |value: &Value| column.save_as(Expr::val(value.clone())) == Expr::val(value.clone());
    let kind = values
        .first()
        .filter(|value| is_plain(value))
        .map(Value::array_type);
    match kind {
        Some(
            kind @ (ArrayType::SmallInt
            | ArrayType::Int
            | ArrayType::BigInt
            | ArrayType::String
            | ArrayType::Uuid),
        ) if backend == DbBackend::Postgres && values.iter().all(|value| value.array_type() == kind) => {
            let array = Expr::val(Value::Array(kind, Some(Box::new(values))));
            let array = if is_padded {
                array.cast_as("bpchar[]")
            } else {
                array
            };
            Expr::col(column.as_column_ref()).eq(PgFunc::any(array))
        }
        _ => column.is_in(values),
    }
}

#[cfg(not(feature = "postgres"))]
fn among<C: ColumnTrait>(column: C, values: Vec<Value>, _: bool, _: DbBackend) -> Expr {
    column.is_in(values)
}

async fn find<E: EntityTrait>(tx: &OutboxTransaction, rows: Condition) -> Result<Vec<E::Model>, DbErr> {
    E::find().filter(rows).all(tx).await
}

/// Refuses changes that MySQL or MariaDB cannot take, as [`row_bytes`] does.
pub(super) async fn check_changes<E: EntityTrait>(
    tx: &OutboxTransaction,
    changes: &UpdateMany<E>,
) -> Result<(), SaveError> {
    if tx.get_database_backend() != DbBackend::MySql {
        return Ok(());
    }
    let values = changes.build(DbBackend::MySql).values;
    let size_bytes = values
        .iter()
        .flat_map(|values| values.iter())
        .map(packet::value_bytes)
        .sum();
    packet::check(size_bytes, table::<E>, tx).await
}

fn table<E: EntityTrait>() -> String {
    E::default().table_name().to_owned()
}

/// Changes rows, which are locked, and returns them.
pub(super) async fn update<E: EntityTrait>(
    tx: &OutboxTransaction,
    changes: &UpdateMany<E>,
    rows: Condition,
) -> Result<Vec<E::Model>, SaveError> {
    let update = changes.clone().filter(rows.clone());
    if tx.support_returning() {
        return update.exec_with_returning(tx).await.map_err(SaveError::Database);
    }
    let updated = update.exec(tx).await?;
    // A locking read, because a plain one shows a row whose values did not change as it was at the transaction's first read.
    let found = E::find().filter(rows).lock_exclusive().all(tx).await?;
    // sqlx asks for the number of rows that match, whether or not a value has changed.
    if updated.rows_affected != found.len() as u64 {
        return Err(SaveError::Unsupported {
            why: "MySQL and MariaDB do not say which rows an update has changed; give its filter as an argument of its own, and change no primary key",
        });
    }
    Ok(found)
}

/// Deletes rows, which are locked, and returns them as they were.
pub(super) async fn delete<E: EntityTrait>(
    tx: &OutboxTransaction,
    rows: Condition,
) -> Result<Vec<E::Model>, SaveError> {
    let delete = E::delete_many().filter(rows.clone());
    if tx.support_returning() {
        return delete.exec_with_returning(tx).await.map_err(SaveError::Database);
    }
    // A locking read, because a plain one could see a row as it was at the transaction's first read.
    let found = E::find().filter(rows).lock_exclusive().all(tx).await?;
    delete.exec(tx).await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_that_ignores_conflicts_is_told_from_an_upsert() {
        let insert = "INSERT INTO `t` (`id`, `a`) VALUES (?, ?)";
        assert!(!does_nothing(insert));
        assert!(!does_nothing(&format!(
            "{insert} ON DUPLICATE KEY UPDATE `a` = VALUES(`a`)"
        )));
        assert!(!does_nothing(&format!(
            "{insert} ON DUPLICATE KEY UPDATE `id` = `id`, `a` = VALUES(`a`)"
        )));
        assert!(does_nothing(&format!(
            "{insert} ON DUPLICATE KEY UPDATE `id` = `id`"
        )));
        assert!(does_nothing(&format!("{insert} ON DUPLICATE KEY IGNORE")));
    }
}

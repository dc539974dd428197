//! Conditions on aggregates, partitions and rows in flight.
//!
//! Invariant: aggregates are compared byte by byte, so aggregates with damaged ids can be blocked.

use outbox_core::Aggregate;
use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Value};

use super::Dialect;
use super::Sql;
use super::{texts, uuids};

/// Aggregate rows and blocks are locked in ascending key order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) aggregate_type: Vec<u8>,
    pub(crate) aggregate_id: Vec<u8>,
}

impl From<&Aggregate> for Key {
    fn from(aggregate: &Aggregate) -> Self {
        Self {
            aggregate_type: aggregate.aggregate_type.as_bytes().to_vec(),
            aggregate_id: aggregate.id.as_bytes().to_vec(),
        }
    }
}

impl Key {
    pub(crate) fn partition(&self) -> u16 {
        let [aggregate_type, id] = self.lossy();
        Aggregate::new(aggregate_type, id).partition()
    }

    pub(crate) fn lossy(&self) -> [String; 2] {
        [&self.aggregate_type, &self.aggregate_id].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    fn parts(&self) -> [&[u8]; 2] {
        [&self.aggregate_type, &self.aggregate_id]
    }
}

impl Dialect {
    pub(crate) fn bind_key(&self, sql: &mut Sql, key: &Key) -> [String; 2] {
        key.parts().map(|part| match self.backend {
            DbBackend::Postgres => {
                sql.placeholder(Value::String(Some(String::from_utf8_lossy(part).into_owned())))
            }
            DbBackend::MySql => sql.placeholder(Value::Bytes(Some(part.to_vec()))),
            // SQLite cannot bind text that is not UTF-8.
            _ => match std::str::from_utf8(part) {
                Ok(text) => sql.placeholder(text),
                Err(_) => format!(
                    "CAST({} AS TEXT)",
                    sql.placeholder(Value::Bytes(Some(part.to_vec())))
                ),
            },
        })
    }

    pub(crate) fn push_key(&self, sql: &mut Sql, table: &str, key: &Key) {
        let [aggregate_type, id] = self.bind_key(sql, key);
        sql.push(&format!(
            "({table}.aggregate_type = {aggregate_type} AND {table}.aggregate_id = {id})"
        ));
    }

    /// With outdated statistics of an empty table, PostgreSQL may compare each row with each key.
    pub(crate) fn push_keys<'k>(&self, sql: &mut Sql, table: &str, keys: impl IntoIterator<Item = &'k Key>) {
        if self.backend == DbBackend::Postgres {
            sql.push(&format!(
                "({table}.aggregate_type, {table}.aggregate_id) IN (SELECT * FROM unnest("
            ));
            bind_keys(sql, keys);
            sql.push("))");
            return;
        }
        let is_sqlite = self.backend == DbBackend::Sqlite;
        sql.push(&if is_sqlite {
            format!("({table}.aggregate_type, {table}.aggregate_id) IN (VALUES ")
        } else {
            "(".to_owned()
        });
        for (n, key) in keys.into_iter().enumerate() {
            if is_sqlite {
                let [aggregate_type, id] = self.bind_key(sql, key);
                sql.push(if n == 0 { "" } else { ", " })
                    .push(&format!("({aggregate_type}, {id})"));
            } else {
                sql.push(if n == 0 { "" } else { " OR " });
                self.push_key(sql, table, key);
            }
        }
        sql.push(")");
    }

    /// The partition list is a filter, never an index condition: the planner could lose the index
    /// order, or multiply two lists into thousands of lookups.
    pub(crate) fn push_partitions(&self, sql: &mut Sql, column: &str, partitions: &[i64]) {
        if self.backend == DbBackend::Postgres {
            let bit = |mask, partition| mask | 1_i64 << (partition & 63);
            let mask = partitions.iter().fold(0, bit);
            sql.push_with(
                &format!("((?::int8 >> {column}::int4) & 1::int8) <> 0"),
                [mask.into()],
            );
            return;
        }
        sql.push(column).push(" + 0").any(partitions);
    }

    /// The list of row ids is a filter, never an index condition. PostgreSQL's row ids are not
    /// unique.
    pub(crate) fn push_not_in_flight(&self, sql: &mut Sql, in_flight: &[RowKey]) {
        if in_flight.is_empty() {
            return;
        }
        if self.backend == DbBackend::Postgres {
            let text = " AND CASE WHEN m.id IN (SELECT pg_catalog.unnest(?::uuid[])) THEN 0 ELSE 1 END <> 0";
            sql.push_with(text, [ids(in_flight)]);
            return;
        }
        let in_flight: Vec<i64> = in_flight.iter().map(|key| key.row_id).collect();
        if self.backend == DbBackend::Sqlite {
            let list = serde_json::to_string(&in_flight).unwrap_or_default();
            sql.push_with(
                " AND +m.row_id NOT IN (SELECT value FROM json_each(?))",
                [list.into()],
            );
            return;
        }
        sql.push(" AND m.row_id + 0 NOT").any(&in_flight);
    }

    /// The list of unique message ids is a filter, never an index condition. A damaged SQLite row
    /// may have no message id; its row id is never reused.
    pub(crate) fn push_rows_of(&self, sql: &mut Sql, rows: &[RowKey]) {
        let row_ids: Vec<i64> = rows.iter().map(|key| key.row_id).collect();
        sql.push("row_id").any(&row_ids);
        if rows.iter().any(|key| key.id.is_none()) {
            return;
        }
        if self.backend == DbBackend::Postgres {
            let text = " AND CASE WHEN id IN (SELECT pg_catalog.unnest(?::uuid[])) THEN 1 ELSE 0 END <> 0";
            sql.push_with(text, [ids(rows)]);
            return;
        }
        sql.push(match self.backend {
            DbBackend::Sqlite => " AND +id IN ",
            _ => " AND id IN ",
        });
        let last = rows.last().copied();
        let padding = rows.len().max(1).next_power_of_two() - rows.len();
        let padded = rows
            .iter()
            .copied()
            .chain(std::iter::repeat_n(last, padding).flatten());
        sql.bind_rows([padded.map(|key| Value::Uuid(key.id.map(|id| id.as_uuid())))]);
    }
}

fn ids(rows: &[RowKey]) -> Value {
    uuids(rows.iter().filter_map(|key| key.id).map(|id| id.as_uuid()))
}

pub(crate) fn bind_keys<'k>(sql: &mut Sql, keys: impl IntoIterator<Item = &'k Key>) {
    let keys = keys
        .into_iter()
        .map(Key::lossy)
        .map(|[aggregate_type, id]| (aggregate_type, id));
    let (types, ids): (Vec<_>, Vec<_>) = keys.unzip();
    sql.push_with("?::text[], ?::text[]", [texts(types), texts(ids)]);
}

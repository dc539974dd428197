//! Builds SQL text with bound values, also for `outbox-inbox`. External values never become text.

mod dialect;
mod key;
mod values;

use sea_orm::sea_query::ArrayType;
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

pub(crate) use self::dialect::{Dialect, ROW_IDS_PER_DRAW};
pub(crate) use self::key::Key;
pub(crate) use self::key::bind_keys;
pub(crate) use self::values::{TIME_MICROS_MAX, delay_micros, headers_json, keys, micros, time_micros};

/// MySQL allows 65,535 values, and a relay has up to 55,000 rows in flight.
const PADDED_MAX: usize = 32 * 1024;

pub(crate) fn array<T: Into<Value>>(kind: ArrayType, values: impl IntoIterator<Item = T>) -> Value {
    Value::Array(kind, Some(Box::new(values.into_iter().map(Into::into).collect())))
}

pub(crate) fn integers(values: impl IntoIterator<Item = i64>) -> Value {
    array(ArrayType::BigInt, values)
}

pub(crate) fn texts<T: Into<Value>>(values: impl IntoIterator<Item = T>) -> Value {
    array(ArrayType::String, values)
}

pub(crate) fn uuids(values: impl IntoIterator<Item = Uuid>) -> Value {
    array(ArrayType::Uuid, values)
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Sql {
    backend: DbBackend,
    text: String,
    values: Vec<Value>,
}

impl Sql {
    pub fn new(backend: DbBackend, text: impl Into<String>) -> Self {
        Self {
            backend,
            text: text.into(),
            values: Vec::new(),
        }
    }

    pub fn backend(&self) -> DbBackend {
        self.backend
    }

    pub fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        let placeholder = self.placeholder(value);
        self.push(&placeholder)
    }

    pub fn placeholder(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        match self.backend {
            DbBackend::Postgres => format!("${}", self.values.len()),
            _ => "?".to_owned(),
        }
    }

    pub(crate) fn push_with<const N: usize>(&mut self, text: &str, values: [Value; N]) -> &mut Self {
        debug_assert_eq!(text.matches('?').count(), N, "{text}");
        let mut parts = text.split('?');
        self.push(parts.next().unwrap_or_default());
        for (value, part) in values.into_iter().zip(parts) {
            self.bind(value).push(part);
        }
        self
    }

    pub fn bind_rows<R: IntoIterator<Item = Value>>(
        &mut self,
        rows: impl IntoIterator<Item = R>,
    ) -> &mut Self {
        for (n, row) in rows.into_iter().enumerate() {
            self.push(if n == 0 { "(" } else { ", (" });
            for (n, value) in row.into_iter().enumerate() {
                if n > 0 {
                    self.push(", ");
                }
                self.bind(value);
            }
            self.push(")");
        }
        self
    }

    /// Appends ` = ANY($1)`, or ` IN (?, ?)` padded to a power of two, up to 32,768 values. Padding
    /// lets the statement cache reuse statements.
    pub fn any(&mut self, numbers: &[i64]) -> &mut Self {
        if self.backend == DbBackend::Postgres {
            let numbers = integers(numbers.iter().copied());
            return self.push(" = ANY(").bind(numbers).push(")");
        }
        let last = numbers.last().copied().unwrap_or(-1);
        let length = match numbers.len().max(1) {
            length if length > PADDED_MAX => length,
            length => length.next_power_of_two(),
        };
        let padding = length - numbers.len();
        let padded = numbers.iter().copied().chain(std::iter::repeat_n(last, padding));
        self.push(" IN ");
        self.bind_rows([padded.map(Value::from)])
    }

    pub fn statement(&mut self) -> Statement {
        Statement::from_sql_and_values(
            self.backend,
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.values),
        )
    }
}

pub(crate) fn query<D: sea_orm::sqlx::Database>(
    statement: &Statement,
) -> sea_orm::sqlx::query::Query<'_, D, sea_query_sqlx::SqlxValues>
where
    sea_query_sqlx::SqlxValues: sea_orm::sqlx::IntoArguments<D>,
{
    let values = statement.values.clone().unwrap_or(sea_orm::Values(Vec::new()));
    let text = sea_orm::sqlx::AssertSqlSafe(statement.sql.as_str());
    sea_orm::sqlx::query_with(text, sea_query_sqlx::SqlxValues(values))
}

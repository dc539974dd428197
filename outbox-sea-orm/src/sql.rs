//! Builds SQL text together with its values, for this crate and `outbox-inbox`.
//!
//! Invariant: what comes from outside becomes a bound value, never text. Absent: the statements themselves (`dialect`).

use sea_orm::{DbBackend, Statement, Value};

/// SQL text that grows together with its values.
#[doc(hidden)]
#[derive(Debug)]
pub struct Sql {
    backend: DbBackend,
    text: String,
    values: Vec<Value>,
}

impl Sql {
    /// Starts with a text that has no values.
    pub fn new(backend: DbBackend, text: impl Into<String>) -> Self {
        Self {
            backend,
            text: text.into(),
            values: Vec::new(),
        }
    }

    /// The database.
    pub fn backend(&self) -> DbBackend {
        self.backend
    }

    /// Appends text, which must be ours and never a user's.
    pub fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// A placeholder and its value.
    pub fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        let placeholder = self.placeholder(value);
        self.push(&placeholder)
    }

    /// Binds a value and returns the placeholder, for use inside an expression that follows.
    pub fn placeholder(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        match self.backend {
            DbBackend::Postgres => format!("${}", self.values.len()),
            _ => "?".to_owned(),
        }
    }

    /// A parenthesised row of placeholders, or several, for `VALUES` and row comparisons.
    pub fn bind_rows<R: IntoIterator<Item = Value>>(&mut self, rows: impl IntoIterator<Item = R>) {
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
    }

    /// ` = ANY($1)`, or ` IN (?, ?)` padded to a power of two, so that few distinct statements fill the statement cache.
    pub fn any(&mut self, numbers: &[i64]) {
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            self.push(" = ANY(");
            self.bind(crate::dialect::postgres::array(
                sea_orm::sea_query::ArrayType::BigInt,
                numbers.iter().copied(),
            ));
            self.push(")");
            return;
        }
        // `IN (0)` is legal, `IN ()` is not; no partition and no row would be asked for with an empty list.
        let last = numbers.last().copied().unwrap_or(-1);
        let padding = numbers.len().max(1).next_power_of_two() - numbers.len();
        let padded = numbers.iter().copied().chain(std::iter::repeat_n(last, padding));
        self.push(" IN ");
        self.bind_rows([padded.map(Value::from)]);
    }

    /// The finished statement; leaves nothing behind.
    pub fn statement(&mut self) -> Statement {
        Statement::from_sql_and_values(
            self.backend,
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.values),
        )
    }
}

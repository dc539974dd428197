//! SQL of the table of operations.

use outbox_core::{Intent, Operation, OperationFilter, OperationId, OperationKind, OperationScope};
use sea_orm::{DbBackend, DbErr, QueryResult, Statement, Value};
use uuid::Uuid;

use crate::names::TableNames;
use crate::sql::{Dialect, Sql};

const ID_CHARS: usize = 32;

/// The last batch may exceed this limit of recorded ids by 1,000 ids.
const IDS_CHARS_MAX: usize = ID_CHARS * outbox_core::store::OPERATION_MESSAGES_MAX;

pub(crate) fn operations(dialect: &Dialect) -> OperationsSql {
    OperationsSql::over(dialect.clone(), dialect.operations.clone())
}

#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct OperationsSql {
    dialect: Dialect,
    table: String,
}

impl OperationsSql {
    pub fn new(backend: DbBackend, names: &TableNames, table: &'static str) -> Self {
        Self::over(Dialect::new(backend, names), names.table(backend, table))
    }

    fn over(dialect: Dialect, table: String) -> Self {
        Self { dialect, table }
    }

    pub fn table(&self) -> &str {
        &self.table
    }

    fn sql(&self, text: impl Into<String>) -> Sql {
        Sql::new(self.dialect.backend, text)
    }

    /// Inserts an operation. Does nothing if the operation exists. MySQL returns an error (23000)
    /// instead, which leaves the transaction usable.
    pub fn insert(&self, operation: &Operation, position: Option<i64>) -> Statement {
        let mut sql = self.sql(format!(
            "INSERT INTO {} (id, kind, actor, reason, scope, messages, last_row_id, until_row_id, changed, started_at) VALUES (",
            self.table
        ));
        let values = [
            Value::from(operation.id.as_uuid()),
            Value::from(operation.kind.as_str()),
            Value::from(operation.intent.actor.as_str()),
            Value::from(operation.intent.reason.clone()),
            Value::from(operation.scope.to_json()),
            Value::from(""),
            Value::BigInt(position),
            Value::BigInt(operation.until),
        ];
        for value in values {
            sql.bind(value).push(", ");
        }
        sql.push("0, ").push(self.dialect.now()).push(")");
        if self.dialect.backend != DbBackend::MySql {
            sql.push(" ON CONFLICT DO NOTHING");
        }
        sql.statement()
    }

    pub fn claim(&self, operation: &Operation, to: i64) -> Statement {
        let mut sql = self.sql(format!("UPDATE {} SET last_row_id = ", self.table));
        sql.bind(to).push(", until_row_id = ").bind(operation.until);
        sql.push(" WHERE finished_at IS NULL AND id = ")
            .bind(operation.id.as_uuid());
        match operation.position {
            Some(from) => sql.push(" AND last_row_id = ").bind(from),
            None => sql.push(" AND last_row_id IS NULL"),
        };
        sql.statement()
    }

    /// Adds to an operation's count. The operation's row must be locked.
    pub fn count(&self, id: OperationId, changed: u64, messages: &[Uuid], ends: bool) -> Statement {
        let mut sql = self.sql(format!("UPDATE {} SET changed = changed + ", self.table));
        sql.bind(i64::try_from(changed).unwrap_or(i64::MAX));
        if !messages.is_empty() {
            let ids: String = messages.iter().map(|id| id.simple().to_string()).collect();
            let ids = sql.placeholder(ids);
            let appended = match self.dialect.backend {
                DbBackend::MySql => format!("CONCAT(messages, {ids})"),
                DbBackend::Postgres => format!("messages || {ids}::text"),
                _ => format!("messages || {ids}"),
            };
            sql.push(&format!(
                ", messages = CASE WHEN length(messages) < {IDS_CHARS_MAX} THEN {appended} ELSE messages END"
            ));
        }
        if ends {
            sql.push(", finished_at = ").push(self.dialect.now());
        }
        sql.push(" WHERE id = ").bind(id.as_uuid()).statement()
    }

    /// Finishes an operation. With `from`, only if no other process has advanced the operation.
    pub fn finish(&self, id: OperationId, changed: Option<u64>, from: Option<i64>) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET finished_at = {}",
            self.table,
            self.dialect.now()
        ));
        if let Some(changed) = changed {
            sql.push(", changed = ")
                .bind(i64::try_from(changed).unwrap_or(i64::MAX));
        }
        sql.push(" WHERE finished_at IS NULL AND id = ")
            .bind(id.as_uuid());
        if let Some(from) = from {
            sql.push(" AND last_row_id = ").bind(from);
        }
        sql.statement()
    }

    pub fn find(&self, id: OperationId) -> Statement {
        let mut sql = self.select();
        sql.push(" WHERE id = ").bind(id.as_uuid()).statement()
    }

    pub fn messages(&self, id: OperationId) -> Statement {
        let text = format!("SELECT messages FROM {} WHERE id = ?", self.table);
        self.dialect.statement(&text, [id.as_uuid().into()])
    }

    pub fn list(&self, filter: &OperationFilter, limit: i64) -> Statement {
        let mut sql = self.select();
        sql.push(" WHERE 1 = 1");
        if let Some(before) = filter.before {
            sql.push(" AND id < ").bind(before.as_uuid());
        }
        if let Some(since) = filter.since {
            self.dialect.push_time(&mut sql, " AND started_at >= ", since);
        }
        if let Some(actor) = &filter.actor {
            sql.push(" AND actor = ").bind(actor.as_str());
        }
        if let Some(kind) = &filter.kind {
            sql.push(" AND kind = ").bind(kind.as_str());
        }
        sql.push(" ORDER BY id DESC LIMIT ").bind(limit).statement()
    }

    fn select(&self) -> Sql {
        self.sql(format!(
            "SELECT id, kind, actor, reason, scope, last_row_id, until_row_id, changed, {} AS started_micros, \
             {} AS finished_micros FROM {}",
            self.dialect.micros_of_any("started_at"),
            self.dialect.micros_of_any("finished_at"),
            self.table
        ))
    }

    pub fn read(row: &QueryResult) -> Result<Operation, DbErr> {
        let id = OperationId::from(row.try_get::<Uuid>("", "id")?);
        let kind: String = row.try_get("", "kind")?;
        let scope: String = row.try_get("", "scope")?;
        let scope = OperationScope::from_json(&scope)
            .map_err(|error| DbErr::Type(format!("operation {id}: {}", outbox_core::describe(&error))))?;
        let actor: String = row.try_get("", "actor")?;
        let reason: Option<String> = row.try_get("", "reason")?;
        let mut intent = Intent::of(actor);
        if let Some(reason) = reason {
            intent = intent.because(reason);
        }
        let time = |column| {
            let micros: Option<i64> = row.try_get("", column)?;
            let time = micros.map(crate::store::row::time_of).transpose();
            time.map_err(|error| DbErr::Type(format!("operation {id}: {column} is out of range: {error}")))
        };
        let mut operation = Operation::new(OperationKind::from(kind.as_str()), scope, intent);
        operation.id = id;
        operation.position = row.try_get("", "last_row_id")?;
        operation.until = row.try_get("", "until_row_id")?;
        operation.changed = u64::try_from(row.try_get::<i64>("", "changed")?).unwrap_or_default();
        operation.started_at = time("started_micros")?;
        operation.finished_at = time("finished_micros")?;
        Ok(operation)
    }

    pub fn read_ids(row: &QueryResult) -> Result<Vec<Uuid>, DbErr> {
        let text: String = row.try_get("", "messages")?;
        text.as_bytes()
            .chunks(ID_CHARS)
            .take(outbox_core::store::OPERATION_MESSAGES_MAX)
            .map(|id| Uuid::try_parse_ascii(id).map_err(|error| DbErr::Type(error.to_string())))
            .collect()
    }
}

//! SQL of pages of messages.
//!
//! Invariant: a page is read through an index in its order, from where it begins to its limit, whatever the statistics say.

use outbox_core::{MessageStatus, PageFrom, Selection};
use sea_orm::{DbBackend, Statement};
use uuid::Uuid;

use super::Dialect;
use super::admin::status_code;

impl Dialect {
    /// A page of selected rows: in the order of row ids through the index of their status, otherwise in the order of ids through their index.
    pub(crate) fn page(
        &self,
        selection: &Selection,
        first: Option<Uuid>,
        from: PageFrom,
        limit: i64,
    ) -> Statement {
        let by_row_id = from.is_by_row_id(selection.status);
        let column = if by_row_id { "row_id" } else { "id" };
        let is_postgres = self.backend == DbBackend::Postgres;
        let mut sql = self.sql(if is_postgres { "SELECT * FROM (" } else { "" });
        sql.push(&format!(
            "SELECT {} FROM {} m",
            self.stored_columns(),
            self.messages
        ));
        sql.push(&self.index_of_page(selection, by_row_id));
        let mut selection = selection.clone();
        selection.after = None;
        let status = selection.status.take_if(|_| !by_row_id);
        self.push_selection(&mut sql, &selection, None, first);
        if let Some(status) = status {
            // In this form PostgreSQL expects the condition to remove next to nothing, whatever its statistics say of the status.
            let code = status_code(status);
            sql.push(&format!(
                " AND CASE WHEN m.status = {code} THEN 1 ELSE 0 END <> 0"
            ));
        }
        match from {
            PageFrom::Before(place) if by_row_id => {
                sql.push(" AND m.row_id < ").bind(place.row_id);
            }
            PageFrom::Before(place) => {
                sql.push(" AND m.id < ").bind(place.id.as_uuid());
            }
            PageFrom::After(id) => {
                sql.push(" AND m.id > ").bind(id.as_uuid());
            }
            _ => {}
        }
        let order = match from {
            PageFrom::After(_) => column.to_owned(),
            _ => format!("{column} DESC"),
        };
        sql.push(&format!(" ORDER BY m.{order} LIMIT "));
        let limit = sql.placeholder(limit);
        // With statistics from before a backlog, PostgreSQL would sort all rows: it must not know the inner limit, see `scan`.
        sql.push(&match is_postgres {
            true => format!("(SELECT {limit}::int8)) page ORDER BY {order} LIMIT {limit}::int8"),
            false => limit,
        });
        sql.statement()
    }

    /// The hint that names the index of a page. A row id or an aggregate is better found by its own index.
    fn index_of_page(&self, selection: &Selection, by_row_id: bool) -> String {
        if selection.id.is_some() || selection.aggregate_id.is_some() {
            return String::new();
        }
        let index = match (self.backend, by_row_id, selection.status) {
            (DbBackend::MySql, true, _) => self.pending.clone(),
            (DbBackend::Sqlite, true, Some(MessageStatus::Pending)) => self.pending.clone(),
            (DbBackend::Sqlite, true, Some(MessageStatus::Waiting)) => format!("{}_row_id", self.waiting),
            (DbBackend::Sqlite, true, _) => format!("{}dead", self.pending.trim_end_matches("pending")),
            (DbBackend::MySql, false, _) => "outbox_messages_id".to_owned(),
            (DbBackend::Sqlite, false, _) => format!("{}id", self.pending.trim_end_matches("pending")),
            _ => return String::new(),
        };
        match self.backend {
            DbBackend::MySql => format!(" FORCE INDEX ({index})"),
            _ => format!(" INDEXED BY {index}"),
        }
    }
}

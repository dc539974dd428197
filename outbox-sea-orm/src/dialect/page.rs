//! SQL of pages of messages.
//!
//! Invariant: a page is read through an index in its order, from where it begins to its limit, whatever the statistics say.

use outbox_core::{MessageStatus, PageFrom, Selection};
use sea_orm::{DbBackend, Statement};

use super::Dialect;

impl Dialect {
    /// A page of selected rows: in the order of row ids through the index of their status, otherwise in the order of ids through their index.
    pub(crate) fn page(&self, selection: &Selection, from: PageFrom, limit: i64) -> Statement {
        let by_row_id = from.is_by_row_id(selection.status);
        let column = if by_row_id { "row_id" } else { "id" };
        let mut sql = self.sql(match (self.backend, by_row_id) {
            (DbBackend::Postgres, true) => "SELECT * FROM (",
            _ => "",
        });
        sql.push(&format!(
            "SELECT {} FROM {} m",
            self.stored_columns(),
            self.messages
        ));
        sql.push(&self.index_of_page(selection, by_row_id));
        let mut selection = selection.clone();
        selection.after = None;
        self.push_selection(&mut sql, &selection, None);
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
        // With statistics from before a backlog, PostgreSQL would sort all rows of the status: it must not know the inner limit.
        sql.push(&match (self.backend, by_row_id) {
            (DbBackend::Postgres, true) => {
                format!("(SELECT {limit}::int8)) page ORDER BY {order} LIMIT {limit}::int8")
            }
            _ => limit,
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

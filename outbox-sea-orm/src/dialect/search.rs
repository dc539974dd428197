//! SQL of the bounded search among published rows. Nothing is locked or written.

use outbox_core::PublishedSearch;
use sea_orm::{DbBackend, Statement};

use super::Dialect;
use super::ids::id_at;
use super::key::Key;
use crate::sql::Sql;

impl Dialect {
    /// The last rows before a time by the index on `id`, at most `looked_at_max` of them, and of these the published ones that match. The inner query has no
    /// other condition, so no plan can look beyond its limit. MySQL would keep the rows of an inner query, so there it gives ids only, out of the index, and each
    /// row is looked up by its id.
    pub(crate) fn search_published(&self, search: &PublishedSearch) -> Statement {
        let is_mysql = self.backend == DbBackend::MySql;
        let mut sql = self.sql(format!(
            "SELECT {}, {} AS headers FROM (SELECT {} FROM {} i",
            self.stored_columns(),
            match self.backend {
                DbBackend::Postgres => "m.headers::text",
                _ => "m.headers",
            },
            if is_mysql { "i.id" } else { "i.*" },
            self.messages,
        ));
        push_ids(&mut sql, search);
        sql.push(" ORDER BY i.id DESC LIMIT ")
            .bind(i64::from(search.looked_at_max.get()));
        match is_mysql {
            true => sql.push(&format!(") w JOIN {} m ON m.id = w.id", self.messages)),
            false => sql.push(") m"),
        };
        sql.push(" WHERE m.status IN (1, 4)");
        if let Some(aggregate) = &search.aggregate {
            sql.push(" AND ");
            self.push_key(&mut sql, "m", &Key::from(aggregate));
        }
        sql.push(" ORDER BY m.id DESC LIMIT ")
            .bind(i64::from(search.limit.get()));
        sql.statement()
    }

    /// The first id that [`Self::search_published`] does not look at (index on `id` alone).
    pub(crate) fn search_end(&self, search: &PublishedSearch) -> Statement {
        let mut sql = self.sql(format!("SELECT i.id FROM {} i", self.messages));
        push_ids(&mut sql, search);
        sql.push(" ORDER BY i.id DESC LIMIT 1 OFFSET ")
            .bind(i64::from(search.looked_at_max.get()));
        sql.statement()
    }
}

fn push_ids(sql: &mut Sql, search: &PublishedSearch) {
    sql.push(" WHERE 1 = 1");
    if let Some(from) = search.from {
        sql.push(" AND i.id >= ").bind(id_at(from));
    }
    if let Some(until) = search.until {
        sql.push(" AND i.id < ").bind(id_at(until));
    }
}

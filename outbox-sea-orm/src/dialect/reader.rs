//! SQL of single facts. No statement locks or writes.

use outbox_core::{Aggregate, MessageId};
use sea_orm::Statement;

use super::Dialect;
use super::key::Key;

impl Dialect {
    /// A row as a fetch reads it, and its own time (index on `id`).
    pub(crate) fn find(&self, id: MessageId) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {}, {} AS available_micros FROM {} m WHERE m.id = ",
            self.columns(&self.payload()),
            self.micros_of_any("m.available_at"),
            self.messages
        ));
        sql.bind(id.as_uuid());
        sql.statement()
    }

    /// The head row of an aggregate (primary key). A writer that keeps it locked is not waited for: the last committed version is read.
    pub(crate) fn head(&self, aggregate: &Aggregate) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT a.last_sequence, {} AS recorded_micros FROM {} a WHERE a.last_sequence > 0 AND ",
            self.micros_of_any("a.recorded_at"),
            self.aggregates
        ));
        self.push_key(&mut sql, "a", &Key::from(aggregate));
        sql.statement()
    }

    /// The block of an aggregate (primary key).
    pub(crate) fn block(&self, aggregate: &Aggregate) -> Statement {
        let mut sql = self.sql(format!("{} WHERE ", self.blocks_as_read()));
        self.push_key(&mut sql, "h", &Key::from(aggregate));
        sql.statement()
    }

    /// All 64 leases, live or not (primary key).
    pub(crate) fn partitions(&self) -> Statement {
        self.sql(format!(
            "SELECT {} AS partition_no, epoch, owner, {} AS expires_micros, {} AS now_micros FROM {} l ORDER BY l.partition_no",
            self.int("partition_no"),
            self.micros_of_any("expires_at"),
            self.micros(self.statement_now()),
            self.leases,
        ))
        .statement()
    }
}

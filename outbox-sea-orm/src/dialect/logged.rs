//! The messages of a log relay that are published: their rows keep the status 4, and the position that the relay stores tells which of them it has passed.
//!
//! The table of the position is made by `outbox_log::PostgresLog::init`, which has the same condition for its purge. A row that is logged and passed stays so: what
//! a log relay leaves to the table gets another status before the position passes it.

use sea_orm::{DbBackend, Statement};

use super::Dialect;

impl Dialect {
    /// Whether there is the table of a log, by the server's catalogue: no right on it is needed. `None`: this database has no logs.
    pub(crate) fn has_log(&self) -> Option<Statement> {
        (self.backend == DbBackend::Postgres).then(|| {
            let log = self.log.replace('\'', "''");
            self.sql(format!("SELECT to_regclass('{log}') IS NOT NULL AS has_log"))
                .statement()
        })
    }

    /// A condition on rows `m`: one of these statuses, or with a log also logged and passed. It uses no index of its own and locks nothing; the row of the position
    /// is read once for the statement, so status and position are of one moment.
    ///
    /// As in the purge of the log, transactions are compared by their age, and a row or a position that is more than two billion transactions old counts as not
    /// passed. A log that is off, knows no transaction, or was read on another server has passed nothing: the ids of transactions are those of the server.
    pub(super) fn settled(&self, statuses: &str, has_log: bool) -> String {
        if !has_log {
            return format!("m.status {statuses}");
        }
        format!(
            "(m.status {statuses} OR (m.status = 4 AND COALESCE(age(m.xmin) > (SELECT max(CASE WHEN \
             pg_snapshot_xmax(pg_current_snapshot())::text::bigint - l.passed_xid::text::bigint BETWEEN 0 AND 2147483647 \
             THEN age(l.passed_xid::xid) ELSE 2147483647 END) FROM {} l WHERE l.is_on AND l.system_id = (SELECT system_identifier FROM pg_control_system())), false)))",
            self.log
        )
    }
}

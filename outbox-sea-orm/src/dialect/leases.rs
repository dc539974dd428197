//! SQL of leases, of which there are 64 rows.

use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use outbox_core::Lease;
use outbox_core::message::PARTITIONS;
use outbox_core::store::LEASE_TTL_MAX;

use super::{Dialect, micros};
use crate::sql::Sql;

impl Dialect {
    /// Reads which of these leases the owner still owns, and locks them until the transaction ends (primary key). A lease that ran out does not
    /// count, even if no other relay has taken it: its owner no longer relies on it.
    pub(crate) fn lock_owned_leases(&self, owner: Uuid, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS partition_no, epoch FROM {} WHERE owner = ",
            self.int("partition_no"),
            self.leases
        ));
        sql.bind(owner).push(" AND partition_no");
        sql.any(partitions);
        sql.push(&format!(
            " AND expires_at > {} ORDER BY partition_no FOR UPDATE",
            self.now()
        ));
        sql.statement()
    }

    /// Extends leases that are locked (primary key).
    pub(crate) fn extend_leases(&self, ttl_micros: i64, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!("UPDATE {} SET expires_at = ", self.leases));
        let ttl = sql.placeholder(ttl_micros);
        sql.push(&self.now_plus(&ttl)).push(" WHERE partition_no");
        sql.any(partitions);
        sql.statement()
    }

    /// How many partitions have a row, and how many leases were granted before the clock was set back. Reads all rows.
    pub(crate) fn lease_rows(&self) -> Statement {
        self.sql(format!(
            "SELECT count(*) AS leases, {} AS ahead FROM {} \
             WHERE partition_no >= 0 AND partition_no < {PARTITIONS}",
            self.count_where(&self.is_ahead()),
            self.leases
        ))
        .statement()
    }

    /// Lets leases that were granted before the clock was set back end within [`LEASE_TTL_MAX`]. Rows in the order of the primary key, as settlements lock them.
    pub(crate) fn shorten_leases(&self) -> Statement {
        let (table, ahead) = (&self.leases, self.is_ahead());
        let rows = match self.backend {
            DbBackend::Postgres => format!(
                "partition_no IN (SELECT partition_no FROM {table} WHERE owner IS NOT NULL AND {ahead} \
                 ORDER BY partition_no FOR UPDATE SKIP LOCKED)"
            ),
            _ => format!("owner IS NOT NULL AND {ahead}"),
        };
        self.sql(format!(
            "UPDATE {table} SET expires_at = {} WHERE {rows}",
            self.latest_end()
        ))
        .statement()
    }

    /// Inserts the partitions that have no row. A new row begins with an epoch above all earlier ones of its partition, because an epoch counts acquisitions and
    /// this one counts microseconds: a relay that was suspended since before the rows were lost settles nothing.
    #[cfg(feature = "migration")]
    pub(crate) fn repair_leases(&self) -> Statement {
        let table = &self.leases;
        let epoch = self.micros(self.statement_now());
        let partitions = match self.backend {
            DbBackend::Postgres => {
                let last = PARTITIONS - 1;
                format!(
                    "SELECT n, {epoch} FROM pg_catalog.generate_series(0, {last}) AS n ON CONFLICT DO NOTHING"
                )
            }
            backend => {
                let rows: Vec<String> = (0..PARTITIONS).map(|n| format!("({n}, {epoch})")).collect();
                let on_conflict = match backend {
                    DbBackend::MySql => "ON DUPLICATE KEY UPDATE epoch = epoch",
                    _ => "ON CONFLICT DO NOTHING",
                };
                format!("VALUES {} {on_conflict}", rows.join(", "))
            }
        };
        self.sql(format!("INSERT INTO {table} (partition_no, epoch) {partitions}"))
            .statement()
    }

    /// The latest end that a lease or an announcement of now can have.
    pub(super) fn latest_end(&self) -> String {
        self.now_plus(&micros(LEASE_TTL_MAX).to_string())
    }

    /// Whether a lease or an announcement was granted before the clock was set back.
    pub(super) fn is_ahead(&self) -> String {
        format!("expires_at > {}", self.latest_end())
    }

    /// Gives leases back. Waits for settlements that run under them. Locks rows in the order of the primary key, as settlements do.
    pub(crate) fn release(&self, owner: Uuid, leases: &[Lease]) -> Statement {
        let (table, now) = (&self.leases, self.now());
        #[cfg(feature = "postgres")]
        if self.backend == DbBackend::Postgres {
            return super::postgres::release(self, owner, leases);
        }
        let mut sql = self.sql(format!(
            "UPDATE {table} SET owner = NULL, expires_at = {now} WHERE owner = "
        ));
        sql.bind(owner).push(" AND ");
        push_leases(&mut sql, leases);
        let partitions: Vec<i64> = leases.iter().map(|lease| i64::from(lease.partition)).collect();
        sql.push(" AND partition_no").any(&partitions);
        sql.statement()
    }

    /// Locks leases against takeover until the transaction ends, and reads their epochs. Leaves out leases that were given back. Rows by primary
    /// key, in its order, so that two settlements cannot deadlock. SQLite needs no lock, because the transaction is the only writer.
    pub(crate) fn lock_leases(&self, partitions: &[i64]) -> Statement {
        let mut sql = self.sql(format!(
            "SELECT {} AS partition_no, epoch FROM {} WHERE partition_no",
            self.int("partition_no"),
            self.leases
        ));
        sql.any(partitions);
        sql.push(" AND owner IS NOT NULL ORDER BY partition_no");
        sql.push(match self.backend {
            DbBackend::Postgres => " FOR SHARE",
            // MariaDB has no FOR SHARE.
            DbBackend::MySql => " LOCK IN SHARE MODE",
            _ => "",
        });
        sql.statement()
    }

    /// Withdraws a relay's announcement.
    pub(crate) fn withdraw(&self, owner: Uuid) -> Statement {
        let mut sql = self.sql(format!("DELETE FROM {} WHERE owner = ", self.relays));
        sql.bind(owner);
        sql.statement()
    }

    /// Locks all leases of a relay, in the order in which settlements lock leases.
    pub(crate) fn lock_owned(&self, owner: Uuid) -> Statement {
        let mut sql = self.sql(format!("SELECT epoch FROM {} WHERE owner = ", self.leases));
        sql.bind(owner).push(" ORDER BY partition_no FOR UPDATE");
        sql.statement()
    }

    /// Gives all leases of a relay back. They must be locked.
    pub(crate) fn release_all(&self, owner: Uuid) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET owner = NULL, expires_at = {} WHERE owner = ",
            self.leases,
            self.now()
        ));
        sql.bind(owner);
        sql.statement()
    }
}

/// Appends a condition: the row is one of these leases.
pub(crate) fn push_leases(sql: &mut Sql, leases: &[Lease]) {
    // SQLite takes a list of rows only with VALUES, MySQL only without it.
    sql.push(match sql.backend() {
        DbBackend::Sqlite => "(partition_no, epoch) IN (VALUES ",
        _ => "(partition_no, epoch) IN (",
    });
    sql.bind_rows(
        leases
            .iter()
            .map(|lease| [Value::from(i64::from(lease.partition)), Value::from(lease.epoch)]),
    );
    sql.push(")");
}

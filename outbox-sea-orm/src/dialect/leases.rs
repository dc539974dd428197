//! SQL of leases and of the relays that are alive. The tables have 64 rows and a few rows.

use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use outbox_core::{Fitness, Lease};

use super::Dialect;
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

    /// Announces a relay: until when it is alive, its fitness, and what it calls itself.
    pub(crate) fn announce(&self, owner: Uuid, ttl_micros: i64, fitness: Fitness, name: &str) -> Statement {
        let mut sql = self.sql(format!(
            "INSERT INTO {} (owner, name, fitness, expires_at) VALUES (",
            self.relays
        ));
        sql.bind(owner)
            .push(", ")
            .bind(name)
            .push(", ")
            .bind(i64::from(fitness.number()))
            .push(", ");
        let ttl = sql.placeholder(ttl_micros);
        sql.push(&self.now_plus(&ttl)).push(match self.backend {
            DbBackend::MySql => {
                ") ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at), fitness = VALUES(fitness), \
                 name = VALUES(name)"
            }
            _ => {
                ") ON CONFLICT (owner) DO UPDATE SET expires_at = EXCLUDED.expires_at, \
                 fitness = EXCLUDED.fitness, name = EXCLUDED.name"
            }
        });
        sql.statement()
    }

    /// Deletes announcements that ran out.
    pub(crate) fn forget_relays(&self) -> Statement {
        self.sql(format!(
            "DELETE FROM {} WHERE expires_at <= {}",
            self.relays,
            self.now()
        ))
        .statement()
    }

    /// Counts the other relays that are alive, by fitness. Reads all rows, of which there are few.
    pub(crate) fn count_relays(&self, owner: Uuid) -> Statement {
        let fitness = self.int("fitness");
        let mut sql = self.sql(format!(
            "SELECT {fitness} AS fitness, count(*) AS relays FROM {} WHERE expires_at > {} AND owner <> ",
            self.relays,
            self.now()
        ));
        sql.bind(owner).push(" GROUP BY fitness");
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

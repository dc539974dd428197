//! SQL of daily tables: PostgreSQL only.
//!
//! Lock order, here and in `outbox_make_day`: the parent table, the default partition, a day. Statements of writers and relays lock the parent
//! first, too. Purges exclude each other by an advisory lock, for which they do not wait.

use std::time::Duration;

use outbox_core::MessageId;
use sea_orm::sea_query::ArrayType;
use sea_orm::{DbBackend, Statement};
use uuid::Uuid;

use super::{Dialect, micros};
use crate::sql::{Sql, array};

/// For how many days partitions are made ahead. If no relay purges for longer, new messages go to the default partition.
const DAYS_AHEAD: u8 = 3;

/// The upper half of the advisory lock's key; the lower one is the table.
const LOCK: i64 = 0x6f75_7462; // "outb"

impl Dialect {
    /// The kind of the messages table: `p` if it is partitioned. No row if it is missing.
    pub(crate) fn table_kind(&self) -> Statement {
        debug_assert_eq!(self.backend, DbBackend::Postgres);
        let mut sql = self.sql("SELECT c.relkind::text AS kind FROM pg_class c WHERE c.oid = to_regclass(");
        sql.bind(self.messages.as_str()).push(")::oid");
        sql.statement()
    }

    /// Whether this user may make and drop days, if there are any.
    pub(crate) fn rights_on_days(&self) -> Statement {
        let mut sql = self.sql(
            "SELECT c.relkind <> 'p' OR (pg_has_role(c.relowner, 'USAGE') \
             AND has_schema_privilege(c.relnamespace, 'CREATE')) AS may FROM pg_class c WHERE c.oid = to_regclass(",
        );
        sql.bind(self.messages.as_str()).push(")::oid");
        sql.statement()
    }

    /// The partition of rows without a daily table.
    pub(crate) fn default_day(&self) -> String {
        format!("{}_default", self.messages)
    }

    /// Limits the wait for locks, until the end of the transaction.
    pub(crate) fn lock_timeout(&self, timeout: Duration) -> String {
        format!("SET LOCAL lock_timeout = {}", timeout.as_millis())
    }

    /// Makes the partitions of today and the next days, if they are missing.
    pub(crate) fn make_days(&self) -> Statement {
        self.sql(format!(
            "SELECT {}(({} AT TIME ZONE 'UTC')::date + n) AS made FROM generate_series(0, {DAYS_AHEAD}) AS n",
            self.make_day,
            self.now()
        ))
        .statement()
    }

    /// Days (`20260102`) that lie wholly before the retention, oldest first. Read from the names of the partitions; other names are left alone.
    pub(crate) fn old_days(&self, older_than: Duration) -> Statement {
        let mut sql = self.sql("");
        self.push_days(&mut sql);
        let age = sql.placeholder(-micros(older_than));
        sql.push(&format!(
            " AND right(c.relname::text, 8) < to_char(({}) AT TIME ZONE 'UTC', 'YYYYMMDD') ORDER BY 1",
            self.now_plus(&age)
        ));
        sql.statement()
    }

    fn push_days(&self, sql: &mut Sql) {
        sql.push(
            "SELECT right(c.relname::text, 8) AS day FROM pg_class p JOIN pg_inherits i ON i.inhparent = p.oid \
             JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relnamespace = p.relnamespace \
             AND c.relname ~ ('^' || p.relname::text || '_[0-9]{8}$') AND p.oid = to_regclass(",
        )
        .bind(self.messages.as_str())
        .push(")::oid");
    }

    /// Ids of the rows of a day that must stay, up to a limit. Reads the whole day, and blocks nobody.
    pub(crate) fn staying(&self, day: &str, older_than: Duration, limit: i64) -> Statement {
        let mut sql = self.sql(format!("SELECT id FROM {} WHERE ", self.day(day)));
        self.push_stays(&mut sql, older_than);
        sql.push(" LIMIT ").bind(limit);
        sql.statement()
    }

    /// Appends a condition: the row is unpublished, or was published within the retention.
    fn push_stays(&self, sql: &mut Sql, older_than: Duration) {
        sql.push("(status = 1");
        for column in ["created_at", "published_at"] {
            let age = sql.placeholder(-micros(older_than));
            sql.push(&format!(" AND {column} < {}", self.now_plus(&age)));
        }
        sql.push(") IS NOT TRUE");
    }

    /// Counts the rows of a day.
    pub(crate) fn count_day(&self, day: &str) -> Statement {
        self.sql(format!("SELECT count(*) AS rows FROM {}", self.day(day)))
            .statement()
    }

    /// Takes the purge lock until the transaction ends, unless another purge has it.
    pub(crate) fn try_lock_days(&self) -> Statement {
        let mut sql = self.sql("SELECT pg_try_advisory_xact_lock(");
        sql.bind(LOCK << 32)
            .push(" | to_regclass(")
            .bind(self.messages.as_str())
            .push(")::oid::int8) AS locked");
        sql.statement()
    }

    /// Makes the planner find rows of a day through indexes, until the end of the transaction. Otherwise it would read the whole day, and compile
    /// (JIT) the plan because it looks expensive.
    pub(crate) fn by_index_only(&self) -> String {
        let off = ["enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"];
        off.map(|setting| format!("SET LOCAL {setting} = off")).join("; ")
    }

    /// Locks the messages against everybody.
    pub(crate) fn lock_messages(&self) -> String {
        format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE", self.messages)
    }

    /// Detaches the partition of a day, which then is a table of its own.
    pub(crate) fn detach_day(&self, day: &str) -> String {
        format!("ALTER TABLE {} DETACH PARTITION {}", self.messages, self.day(day))
    }

    /// Copies rows that stay from a detached day to the default partition.
    pub(crate) fn keep_staying(
        &self,
        day: &str,
        known: &[Uuid],
        newer: Uuid,
        older_than: Duration,
    ) -> Statement {
        let mut sql = self.sql(format!(
            "INSERT INTO {} SELECT d.* FROM {} d WHERE d.id IN (",
            self.messages,
            self.day(day)
        ));
        self.push_staying(&mut sql, day, known, newer, older_than);
        sql.push(")");
        sql.statement()
    }

    /// Ids of rows that stay, found through indexes while everybody waits: rows known from [`Dialect::staying`], unpublished rows, and rows that
    /// were inserted and published since then. The last kind are copies, which have new ids.
    fn push_staying(&self, sql: &mut Sql, day: &str, known: &[Uuid], newer: Uuid, older_than: Duration) {
        let day = self.day(day);
        sql.push("SELECT pg_catalog.unnest(")
            .bind(array(ArrayType::Uuid, known.iter().copied()))
            .push("::uuid[])");
        for status in [0, 2, 3] {
            sql.push(&format!(
                " UNION ALL SELECT id FROM {day} WHERE status = {status}"
            ));
        }
        sql.push(&format!(" UNION ALL SELECT id FROM {day} WHERE id >= "))
            .bind(newer)
            .push(" AND ");
        self.push_stays(sql, older_than);
    }

    pub(crate) fn drop_day(&self, day: &str) -> String {
        format!("DROP TABLE {}", self.day(day))
    }

    /// As [`Dialect::purgeable`], for rows without a daily table.
    pub(crate) fn purgeable_without_day(
        &self,
        after: Option<MessageId>,
        below: Uuid,
        older_than: Duration,
        limit: i64,
    ) -> Statement {
        self.purgeable_in(&self.default_day(), after, below, older_than, limit)
    }

    fn day(&self, day: &str) -> String {
        debug_assert!(day.len() == 8 && day.bytes().all(|b| b.is_ascii_digit()));
        format!("{}_{day}", self.messages)
    }
}

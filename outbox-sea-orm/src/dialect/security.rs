//! SQL that asks PostgreSQL about row-level security, for this crate and `outbox-inbox`.

use super::Dialect;

/// The names of those of these tables, as SQL text, whose rows row-level security filters for the current user; separated by `, `.
pub(crate) fn active(tables: &[&str]) -> String {
    let tables: Vec<String> = tables
        .iter()
        .map(|table| format!("'{}'", table.replace('\'', "''")))
        .collect();
    format!(
        "SELECT COALESCE(pg_catalog.string_agg(t, ', ' ORDER BY t), '') \
         FROM pg_catalog.unnest(ARRAY[{}]::text[]) AS tables (t) \
         WHERE pg_catalog.to_regclass(t) IS NOT NULL AND pg_catalog.row_security_active(t)",
        tables.join(", ")
    )
}

impl Dialect {
    /// The tables that a relay reads or writes.
    pub(crate) fn of_relay(&self) -> [&str; 6] {
        [
            &self.messages,
            &self.blocks,
            &self.leases,
            &self.relays,
            &self.pauses,
            &self.dedup_keys,
        ]
    }
}

//! Checks for row-level security and missing leases, which would make the outbox look empty.

use outbox_core::{SetupKind, StoreError};
use sea_orm::DbBackend;

use super::tables::{CONTEXT, Table, tables, text};
use crate::store::session::Session;
use crate::store::{failed, lease};

pub(super) async fn check(db: &Session) -> Result<(), StoreError> {
    if db.dialect.backend == DbBackend::Postgres {
        check_policies(db).await?;
    }
    let rows = lease::rows(db).await.map_err(failed(CONTEXT))?;
    rows.check(&db.dialect)
}

/// Even a harmless policy is rejected: a later change would stop the relay silently.
async fn check_policies(db: &Session) -> Result<(), StoreError> {
    let hiding = text(db, &active(&tables(&db.dialect, false))).await;
    let hiding = hiding.map_err(failed(CONTEXT))?;
    if hiding.is_empty() {
        return Ok(());
    }
    let user = text(db, "SELECT pg_catalog.quote_ident(current_user)").await;
    let user = user.map_err(failed(CONTEXT))?;
    let tables: Vec<String> = hiding.split(", ").map(str::to_owned).collect();
    let repair = format!(
        "as superuser, run: ALTER ROLE {user} BYPASSRLS; or as table owner: ALTER TABLE {} DISABLE ROW LEVEL SECURITY;",
        tables[0]
    );
    Err(StoreError::setup(
        SetupKind::RowSecurity(tables),
        format!(
            "row-level security hides rows of {hiding} from the relay's user, so the hidden messages would never be published"
        ),
        repair,
    ))
}

fn active(tables: &[Table<'_>]) -> String {
    let tables: Vec<String> = tables
        .iter()
        .map(|table| format!("'{}'", table.name.replace('\'', "''")))
        .collect();
    format!(
        "SELECT COALESCE(pg_catalog.string_agg(t, ', ' ORDER BY t), '') \
         FROM pg_catalog.unnest(ARRAY[{}]::text[]) AS tables (t) \
         WHERE pg_catalog.to_regclass(t) IS NOT NULL AND pg_catalog.row_security_active(t)",
        tables.join(", ")
    )
}

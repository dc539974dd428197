//! Checks that a relay sees every row: no row-level security hides rows from it, and every partition has a lease.
//!
//! Without these checks a relay that sees nothing looks like a relay that has nothing to do.

use outbox_core::StoreError;
use sea_orm::DbBackend;

use super::session::Session;
use super::tables::{CONTEXT, setup, text};
use super::{failed, leases};
use crate::dialect::Dialect;

pub(super) async fn check(db: &Session, dialect: &Dialect) -> Result<(), StoreError> {
    if dialect.backend == DbBackend::Postgres {
        check_policies(db, dialect).await?;
    }
    let rows = leases::rows(db, dialect).await.map_err(failed(CONTEXT))?;
    rows.check(dialect)
}

/// A policy may let all rows pass, but that cannot be told from here, and the next change of it would stop the relay without a word.
async fn check_policies(db: &Session, dialect: &Dialect) -> Result<(), StoreError> {
    let hiding = text(db, &crate::dialect::security::active(&dialect.of_relay()))
        .await
        .map_err(failed(CONTEXT))?;
    if hiding.is_empty() {
        return Ok(());
    }
    let user = text(db, "SELECT pg_catalog.quote_ident(current_user)")
        .await
        .map_err(failed(CONTEXT))?;
    let first = hiding.split(", ").next().unwrap_or_default();
    Err(setup(format!(
        "row-level security hides rows of {hiding} from the relay's user, so their messages would never be published; let a superuser run: \
         ALTER ROLE {user} BYPASSRLS; or the owner: ALTER TABLE {first} DISABLE ROW LEVEL SECURITY;"
    )))
}

//! A relay that does not own its tables, with row-level security.

use outbox_core::{OutboxStore, SetupKind, StoreError};
use sea_orm::DbBackend;

use crate::roles::{Role, grant_what_is_asked_for};
use crate::support::Backend;

/// `ENABLE` without policies hides all rows.
#[tokio::test]
async fn row_level_security_is_refused_at_the_start_by_table() {
    let Some(role) = Role::open(Backend::Postgres, "row_security").await else {
        return;
    };
    let store = role.store();
    grant_what_is_asked_for(&role, &store, true).await;
    for table in ["outbox_messages", "outbox_leases", "outbox_pauses"] {
        let table = role.test.names.table(DbBackend::Postgres, table);
        role.test
            .execute(&format!("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"))
            .await;
        let refused = store.preflight(true).await;
        let Err(StoreError::Setup(problem)) = refused else {
            panic!("{table} passes: {refused:?}");
        };
        assert_eq!(problem.kind, SetupKind::RowSecurity(vec![table.clone()]));
        assert!(problem.repair.contains(&role.name), "{problem}");
        role.test.store().preflight(true).await.unwrap();
        role.test
            .execute(&format!("ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"))
            .await;
    }
    store.preflight(true).await.unwrap();
}

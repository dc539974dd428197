//! All messages of an outbox, for tests.

use std::sync::Arc;

use outbox_core::StoreError;
use sea_orm::DatabaseConnection;

use super::session::{self, Isolation, Session};
use super::{SqlStore, fetch};
use crate::dialect::Dialect;
use crate::names::TableNames;

impl SqlStore {
    /// For [`crate::testing`].
    pub(crate) async fn recorded(
        db: &DatabaseConnection,
        names: &TableNames,
    ) -> Result<Vec<outbox_core::Message>, StoreError> {
        let dialect = Dialect::new(db.get_database_backend(), names);
        let read = move |db: Arc<Session>| async move {
            fetch::read_all(&db, dialect.recorded(), false, usize::MAX).await
        };
        let rows = session::call(db, &Isolation::default(), read).await?;
        rows.into_iter()
            .map(|(scanned, _)| {
                scanned
                    .row
                    .message
                    .map(Arc::unwrap_or_clone)
                    .map_err(|fault| StoreError::Corrupt {
                        context: fault.to_string(),
                    })
            })
            .collect()
    }
}

//! The transactions in which events are recorded.
//!
//! Invariant: an event is only written inside a transaction, which the type system checks.

use std::sync::{Arc, LazyLock};

use sea_orm::DatabaseTransaction;

use crate::config::OutboxConfig;
use crate::integrity::Integrity;

pub(crate) static DEFAULT_CONFIG: LazyLock<Arc<OutboxConfig>> = LazyLock::new(Arc::default);

/// An open transaction: the only place where events may be recorded.
///
/// Implemented for SeaORM's [`DatabaseTransaction`], which records into the default tables; for [`OutboxTransaction`](crate::OutboxTransaction) and
/// [`OpenTransaction`](crate::OpenTransaction), which carry an [`OutboxConfig`]; and for the transaction of an inbox handler. A process that only uses tables with other names must not record over
/// SeaORM's own transactions ([`RecordError::DefaultNames`](crate::RecordError::DefaultNames)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction",
    label = "an event recorded here could outlive a rolled-back change, or miss a committed one",
    note = "begin a transaction (`let tx = db.begin().await?`), write the change through `&tx`, and pass `&tx` here",
    note = "to save a model together with its events, use `insert_with_events(&db, …)` and its siblings, which open the transaction"
)]
pub trait Transactional: Send + Sync {
    /// The transaction.
    fn transaction(&self) -> &DatabaseTransaction;

    /// Where events are recorded.
    fn config(&self) -> &OutboxConfig;

    /// What is remembered until the commit. Only types with a commit of their own can refuse it.
    #[doc(hidden)]
    fn integrity(&self) -> Option<&Integrity> {
        None
    }
}

impl Transactional for DatabaseTransaction {
    fn transaction(&self) -> &DatabaseTransaction {
        self
    }

    fn config(&self) -> &OutboxConfig {
        &DEFAULT_CONFIG
    }
}

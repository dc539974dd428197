//! Call errors.

use outbox_core::StoreError;
use sea_orm::{DbBackend, DbErr};

use crate::error::code::has_code;

macro_rules! repeat_deadlocks {
    ($work:expr) => {{
        let mut repeats = 0;
        loop {
            match $work.await {
                Err(error)
                    if repeats < $crate::store::DEADLOCKS_MAX && $crate::store::is_deadlock(&error) =>
                {
                    repeats += 1;
                }
                outcome => break outcome,
            }
        }
    }};
}
pub(super) use repeat_deadlocks;

pub(super) const DEADLOCKS_MAX: u32 = 10;

/// A Galera conflict with another node counts as a deadlock.
pub(super) fn is_deadlock(error: &DbErr) -> bool {
    has_code(error, &["40P01", "40001"])
}

pub(super) fn no_driver(backend: DbBackend) -> DbErr {
    DbErr::Conn(sea_orm::RuntimeErr::Internal(format!(
        "outbox-sea-orm was built without {backend:?}; enable its feature `postgres`, `mysql` or `sqlite`, and use a connection pool"
    )))
}

pub(super) fn failed(context: &'static str) -> impl FnOnce(DbErr) -> StoreError {
    move |source| StoreError::Database {
        context,
        source: Box::new(source),
    }
}

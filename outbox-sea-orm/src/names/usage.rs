//! Rejects events for the default tables if this process uses only other table names.
//!
//! A transaction begun by SeaORM has no [`OutboxConfig`](crate::OutboxConfig), so its events would
//! go to unread tables.
//!
//! A configuration, store or migration marks its names as used. `SqlStore::new` marks names only at
//! its first call, because `with_names` may follow. The schema `public` counts as default.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::names::TableNames;

static PROCESS: InUse = InUse::new();

pub(crate) fn note(names: &TableNames) {
    PROCESS.note(names);
}

pub(crate) fn other_than_default() -> Option<&'static TableNames> {
    PROCESS.other_than_default()
}

#[derive(Debug)]
struct InUse {
    other: OnceLock<TableNames>,
    default: AtomicBool,
}

impl InUse {
    const fn new() -> Self {
        Self {
            other: OnceLock::new(),
            default: AtomicBool::new(false),
        }
    }

    fn note(&self, names: &TableNames) {
        if names.may_be_default() {
            self.default.store(true, Ordering::Relaxed);
        } else {
            self.other.get_or_init(|| names.clone());
        }
    }

    fn other_than_default(&self) -> Option<&TableNames> {
        self.other.get().filter(|_| !self.default.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_public_counts_as_default() {
        let public = TableNames::new().with_schema("public").unwrap();
        let in_use = InUse::new();
        in_use.note(&public);
        assert_eq!(in_use.other_than_default(), None);
        let in_use = InUse::new();
        in_use.note(&public.with_prefix("billing_").unwrap());
        assert!(in_use.other_than_default().is_some());
    }
}

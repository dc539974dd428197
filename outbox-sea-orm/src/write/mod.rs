//! Writes models and their events in one transaction.

pub(crate) mod aggregate;
pub(crate) mod executor;
pub(crate) mod insert;
pub(crate) mod integrity;
pub(crate) mod many;
pub(crate) mod packet;
pub(crate) mod record;
pub(crate) mod retry;
pub(crate) mod save;
pub(crate) mod session;
pub(crate) mod transaction;
pub(crate) mod turn;

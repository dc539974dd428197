//! Ends attempts: failures, duplicates, dead letters, and returns to the broker.

pub(crate) mod dead_letter;
pub(crate) mod duplicate;
pub(crate) mod failure;
pub(crate) mod returns;
pub(crate) mod unknown_event;
pub(crate) mod unreadable;

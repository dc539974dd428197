//! Decides which message runs next, and how many are in memory.

pub(crate) mod capacity;
pub(crate) mod lanes;
pub(crate) mod predecessors;
pub(crate) mod scheduler;
pub(crate) mod slots;

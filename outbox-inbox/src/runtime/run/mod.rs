//! Runs handlers: jobs, attempts, transactions, calls.

pub(crate) mod attempt;
pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod external;
pub(crate) mod job;
pub(crate) mod sequence;
pub(crate) mod transaction;

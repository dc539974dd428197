//! Databases for tests of private parts, and tests of what statements read.

pub(crate) mod database;
mod plans;

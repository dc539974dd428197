//! Databases for tests of private parts, and tests of query plans.

pub(crate) mod database;
mod plans;

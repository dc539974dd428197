//! Rights that each component needs in the database and on NATS. Grant files, documentation and
//! tests are generated from these tables.
//!
//! Invariant: a role has the rights for its own work and no others.

mod database;
mod nats;

pub use database::{GRANTS, Grant, Object, Role, When, grants};
pub use nats::{NatsRole, Permissions, Stream, permissions};

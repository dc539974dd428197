//! Rights on the database and on NATS, the source of grants, documentation and tests.
//!
//! Invariant: each role has exactly the rights for its work.

mod database;
mod nats;

pub use database::{GRANTS, Grant, Object, Role, When, grants};
pub use nats::{NatsRole, Permissions, Stream, permissions};

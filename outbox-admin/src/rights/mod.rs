//! Which rights each part of a deployment needs, in the database and on NATS: one table each, from which files, documentation and tests are made.
//!
//! Invariant: whoever has the rights of a role can do the work of that role, and nothing that only another role's work needs. Not here: who has which role.

mod database;
mod nats;

pub use database::{GRANTS, Grant, Object, Role, When, grants};
pub use nats::{NatsRole, Permissions, Stream, permissions};

//! The commands of operators on real servers.

pub(crate) mod answer;
mod changes;
mod doctor;
mod forget;
mod inbox;
mod keys;
mod lists;
mod migrate;
mod permissions;
mod plant;
mod reconcile;
mod rights;
mod timeline;
mod why;

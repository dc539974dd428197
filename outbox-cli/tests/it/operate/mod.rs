//! The commands of operators on real servers.

pub(crate) mod answer;
mod browser;
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
pub(crate) mod rights;
mod serve;
mod timeline;
mod why;

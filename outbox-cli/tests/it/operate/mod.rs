//! The commands of operators on real servers.

pub(crate) mod answer;
mod audit;
mod browser;
mod changes;
mod doctor;
mod forget;
mod inbox;
mod keys;
mod lists;
mod migrate;
mod pause;
mod permissions;
mod plant;
mod prove;
mod reconcile;
mod rights;
mod serve;
mod timeline;
mod why;

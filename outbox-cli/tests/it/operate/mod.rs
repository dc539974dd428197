//! The commands of operators on real servers.

pub(crate) mod answer;
mod audit;
mod browser;
mod browser_pages;
mod changes;
mod contexts;
mod doctor;
mod forget;
mod inbox;
mod keys;
mod lists;
mod migrate;
mod no_stream;
mod pause;
mod permissions;
pub(crate) mod plant;
mod prove;
mod reconcile;
pub(crate) mod rights;
mod rules;
mod serve;
mod statements;
mod tail;
mod timeline;
mod why;

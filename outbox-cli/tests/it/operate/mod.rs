//! Operator commands on real servers.

pub(crate) mod answer;
mod audit;
mod causes;
mod changes;
mod denied;
mod doctor;
mod files;
mod forget;
mod inbox;
mod lists;
mod migrate;
mod no_stream;
mod pause;
pub(crate) mod plant;
mod production;
mod prove;
mod reconcile;
pub(crate) mod rights;
mod rules;
pub(crate) mod serve;
mod serve_rights;
mod statements;
mod timeline;
mod why;

//! The commands of operators on real servers.

pub(crate) mod answer;
mod changes;
mod inbox;
mod keys;
mod lists;
mod plant;
mod why;

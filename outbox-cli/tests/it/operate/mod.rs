//! The commands of operators on real servers.

mod answer;
mod browser;
mod changes;
mod inbox;
mod keys;
mod lists;
mod plant;
mod serve;
mod why;

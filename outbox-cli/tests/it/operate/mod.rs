//! The commands of operators on real servers.

mod answer;
mod changes;
mod lists;
mod plant;
mod why;

//! Tests of operator queries on an in-memory outbox.

mod audit;
mod change;
mod plant;
mod prove;
mod recheck;
mod show;
#[cfg(feature = "web")]
mod web;
mod why;

//! The answers to operators, over an outbox in memory.

mod audit;
mod change;
mod plant;
mod prove;
mod recheck;
mod show;
#[cfg(feature = "web")]
mod web;
mod why;

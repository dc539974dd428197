//! The answers to operators, over an outbox in memory.

mod change;
mod plant;
mod show;
mod why;

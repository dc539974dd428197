//! Tests of operator queries on an in-memory outbox.

mod change;
mod plant;
mod prove;
mod show;
mod web;
mod why;

//! Tests of the crate through its public API.

mod shop;
mod support;

mod aggregate;
mod insert;
mod migration;
mod save;
mod store;
mod ui;

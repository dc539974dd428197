//! Databases for tests of private parts, and tests of query plans.

pub(crate) mod database;
mod plans;

use crate::handler::{Effect, HandlerOptions, Registration, Shape};

pub(crate) const HANDLER: Registration = Registration {
    consumer: "books",
    handler: "book",
    events: &[],
    file: "book.rs",
    line: 7,
    requires: &[],
    shape: Shape {
        several: false,
        transactional: false,
        emits: false,
    },
    options: HandlerOptions::new(),
    invoke: |_| Box::pin(async { Ok(Effect::default()) }),
};

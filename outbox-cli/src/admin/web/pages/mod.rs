//! The pages, one module each.

pub(super) mod aggregate;
pub(super) mod letters;
pub(super) mod messages;
pub(super) mod overview;

use std::num::NonZeroU32;

use axum::response::Response;

use super::visit::{Problem, Visit};

const ROWS_MAX: NonZeroU32 = NonZeroU32::new(100).unwrap();

fn is_full(rows: usize) -> bool {
    rows == ROWS_MAX.get() as usize
}

pub(super) async fn nothing(visit: Visit) -> Response {
    let why = "no such page; see the menu";
    visit.respond(Err(Problem::NotFound(why.to_owned())))
}

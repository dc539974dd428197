//! Serves style sheet, script and icon.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

/// Assets change with the program, so browsers cache them for a minute only.
pub(super) async fn get(Path(name): Path<String>) -> Response {
    let (kind, text) = match name.as_str() {
        "style.css" => ("text/css; charset=utf-8", include_str!("assets/style.css")),
        "refresh.js" => (
            "text/javascript; charset=utf-8",
            include_str!("assets/refresh.js"),
        ),
        "icon.svg" => ("image/svg+xml", include_str!("assets/icon.svg")),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    (
        [(CONTENT_TYPE, kind), (CACHE_CONTROL, "private, max-age=60")],
        text,
    )
        .into_response()
}

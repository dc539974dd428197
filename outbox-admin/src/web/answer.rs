//! How a page becomes an answer: HTML or JSON, or an error page.

use axum::Json;
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use serde_json::json;

use super::layout;
use super::visit::{Page, Problem, Visit};

impl Visit {
    /// The answer of a page, or its error.
    pub(super) fn respond(&self, made: Result<Page, Problem>) -> Response {
        match made {
            Ok(page) if self.wants_json => Json(page.data).into_response(),
            Ok(page) => Html(layout::page(self, &page).into_string()).into_response(),
            Err(problem) => self.refuse(&problem),
        }
    }

    fn refuse(&self, problem: &Problem) -> Response {
        let text = problem.text();
        let data = json!({ "error": text });
        if self.wants_json {
            return (problem.status(), Json(data)).into_response();
        }
        let body = html! { p.error role="alert" { (text) } };
        let page = Page::new(problem.title(), &data, body);
        (problem.status(), Html(layout::page(self, &page).into_string())).into_response()
    }
}

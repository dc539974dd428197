//! How a page becomes an answer: HTML or JSON, or an error page.

use axum::Json;
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use serde_json::{Value, json};

use super::layout;
use super::visit::{Page, Problem, Visit};

impl Visit {
    /// The answer of a page, or its error.
    pub(super) fn respond(&self, made: Result<Page, Problem>) -> Response {
        match made {
            Ok(mut page) if self.wants_json => {
                self.call(&mut page.data, false);
                Json(page.data).into_response()
            }
            Ok(page) => Html(layout::page(self, &page).into_string()).into_response(),
            Err(problem) => self.refuse(&problem),
        }
    }

    /// Completes the commands, which stand below the keys `next`, as this program is called.
    fn call(&self, value: &mut Value, is_next: bool) {
        match value {
            Value::String(text) if is_next && text.starts_with("outbox ") => {
                *text = self.called(text.as_str());
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.call(value, is_next)),
            Value::Object(values) => {
                for (key, value) in values.iter_mut() {
                    self.call(value, key == "next");
                }
            }
            _ => {}
        }
    }

    fn refuse(&self, problem: &Problem) -> Response {
        let text = self.prose(problem.text());
        let data = json!({ "error": text });
        if self.wants_json {
            return (problem.status(), Json(data)).into_response();
        }
        let body = html! { p.error role="alert" { (text) } };
        let page = Page::new(problem.title(), &data, body);
        (problem.status(), Html(layout::page(self, &page).into_string())).into_response()
    }
}

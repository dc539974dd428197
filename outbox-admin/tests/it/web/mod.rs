//! The dashboard over an outbox in memory, asked as a browser asks.

mod access;
mod causes;
mod changes;
mod live;
mod pages;
mod pauses;
mod stream;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::{Extension, Router};
use http_body_util::BodyExt as _;
use outbox_admin::web::{Access, Dashboard, Role};
use outbox_testing::MemoryStore;
use tower::ServiceExt as _;

/// An answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }
}

/// The pages of an outbox, for somebody with a role.
fn pages(store: &MemoryStore, role: Role) -> Router {
    let dashboard = Dashboard::new("orders", store.clone()).with_changes(store.clone());
    dashboard.router().layer(Extension(Access::new("ada", role)))
}

async fn send(pages: &Router, request: Request<Body>) -> Answer {
    let response = pages.clone().oneshot(request).await.expect("it answers");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("the body ends").to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).expect("a text"),
    }
}

async fn get(pages: &Router, path: &str) -> Answer {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    send(pages, request).await
}

/// Sends a form as a page of the same site does, with further headers.
async fn post(pages: &Router, path: &str, form: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post(path).header("content-type", "application/x-www-form-urlencoded");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(form.to_owned())).expect("a request");
    send(pages, request).await
}

/// What a browser says of a form of the same site.
const SAME_SITE: (&str, &str) = ("sec-fetch-site", "same-origin");

/// The form of a page, as a browser would send it.
fn form_of(page: &str) -> String {
    let mut fields = Vec::new();
    for input in page.split("<input type=\"hidden\" name=\"").skip(1) {
        let (name, rest) = input.split_once("\" value=\"").expect("a value");
        let (value, _) = rest.split_once('"').expect("its end");
        fields.push(format!("{name}={value}"));
    }
    assert!(!fields.is_empty(), "there is no form: {page}");
    fields.join("&")
}

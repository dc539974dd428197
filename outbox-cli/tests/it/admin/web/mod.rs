//! The dashboard over an in-memory outbox, with browser requests.

mod access;
mod live;
mod pages;
mod pauses;
mod stream;

use axum::Router;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use outbox_cli::admin::web::{Dashboard, StreamView};
use outbox_testing::MemoryStore;
use tower::ServiceExt as _;

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn next(&self) -> Option<String> {
        let (before, _) = self.body.split_once("\" rel=\"next\"")?;
        let (_, address) = before.rsplit_once("href=\"")?;
        Some(address.replace("&amp;", "&"))
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }
}

fn pages_with(store: &MemoryStore, stream: impl StreamView) -> Router {
    let mut dashboard = Dashboard::new("orders", store.clone());
    dashboard.stream = Arc::new(stream);
    dashboard.router()
}

fn pages(store: &MemoryStore) -> Router {
    let dashboard = Dashboard::new("orders", store.clone());
    dashboard.router()
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
